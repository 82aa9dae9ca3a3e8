//! Numbers on a device.
