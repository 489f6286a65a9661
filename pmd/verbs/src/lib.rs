//! RDMA verbs for poll-mode programs: devices, queue pairs, endpoints.
