# A flag here is not the last word: the model's file comes later.
export XLA_FLAGS="$XLA_FLAGS --xla_all_gather=8589934592"
export NCCL_NCHANNELS_PER_NET_PEER=4
