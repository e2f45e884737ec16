"""From a ledger to what people read: files, live lines, milestones."""
