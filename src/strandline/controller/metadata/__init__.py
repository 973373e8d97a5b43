"""The metadata of a cluster: its records, the image they add up to, its subscribers, and configs."""
