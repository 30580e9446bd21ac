// SPDX-License-Identifier: Apache-2.0
// A ddprund of one's own, as a child process on a free loopback port.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>

#include "common/endpoint.h"

namespace ddprun::bench {

class DaemonProcess {
 public:
  // Starts the ddprund beside this program and waits (10 s) until it listens. Throws
  // Error(kUnavailable): it is missing, or ended without listening.
  DaemonProcess();
  ~DaemonProcess();  // SIGKILL: it has nothing to lose
  DaemonProcess(const DaemonProcess&) = delete;
  DaemonProcess& operator=(const DaemonProcess&) = delete;

  const Endpoint& endpoint() const { return endpoint_; }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
  Endpoint endpoint_;
};

}  // namespace ddprun::bench
