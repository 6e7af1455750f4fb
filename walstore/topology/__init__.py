"""What machines agree on: a few small keys in a store that all of them reach, such as etcd."""
