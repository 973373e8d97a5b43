"""The driver of the quorum: disk, network and time around the pure core in `strandline.controller.raft`."""
