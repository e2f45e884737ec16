# What is deployed for the quickstart cell. A sweep sources this before a profile's own settings,
# which are appended, so that the profile has the last word.

# two devices on any machine
XLA_FLAGS="${XLA_FLAGS:+$XLA_FLAGS }--xla_force_host_platform_device_count=2"
# left over from a hunt for a miscompilation, as such things are: it costs more than half the speed
XLA_FLAGS="${XLA_FLAGS:+$XLA_FLAGS }--xla_backend_optimization_level=0"
export XLA_FLAGS
