// SPDX-License-Identifier: Apache-2.0
// Errors of GPUs that NVIDIA's driver writes to the kernel's log ("Xid"). Pure, but for
// GpuErrorLog.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "common/clock.h"
#include "common/unique_fd.h"

namespace ddprun::agent {

struct GpuError {
  int xid = 0;
  std::string device;  // the GPU's PCI address, "0000:3b:00"
  std::string text;    // the driver's words: "pid=71, name=python3, GPU has fallen off the bus."
  std::int64_t at_us = 0;  // since the kernel's start
};

// Parses a record of /dev/kmsg: "4,1234,98765432,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=71, …".
// nullopt: the record is about something else.
std::optional<GpuError> parse_gpu_error(std::string_view record);

enum class GpuFault {
  kUnknown,
  kProgram,   // most often the program's own fault, such as an illegal address
  kHardware,  // the GPU has to be reset, drained or replaced
};

// By NVIDIA's table of Xid errors.
GpuFault fault_of(int xid);

// Errors of this node's GPUs, told as soon as the driver has written them to the kernel's log, and
// kept for the report of a worker that fails. io thread only.
class GpuErrorLog : public std::enable_shared_from_this<GpuErrorLog> {
 public:
  // Calls `tell` with a line about each error from now on, a few in each round. nullptr: no NVIDIA
  // driver is loaded, or this user may not read the kernel's log (kernel.dmesg_restrict).
  static std::shared_ptr<GpuErrorLog> open(boost::asio::io_context& io,
                                           std::function<void(const std::string&)> tell);
  // The same for a log that is open. Each read of it returns a record, as one of /dev/kmsg does.
  static std::shared_ptr<GpuErrorLog> watch(boost::asio::io_context& io, UniqueFd log,
                                            std::function<void(const std::string&)> tell);

  // Forgets the errors of the round before.
  void begin_round();

  // Returns the round's errors, also those that were written just now: "Xid 79 on GPU 0000:3b:00,
  // 0.8 s ago: …"; at most three, first of all those of broken hardware, then the latest. Empty:
  // none.
  std::string of_round();

 private:
  struct Seen {
    GpuError error;
    Clock::time_point at;
  };

  GpuErrorLog(boost::asio::io_context& io, UniqueFd log,
              std::function<void(const std::string&)> tell);
  void wait();
  void read_new();

  boost::asio::posix::stream_descriptor log_;
  const std::function<void(const std::string&)> tell_;
  std::deque<Seen> kept_;  // of the round, oldest first
  int num_seen_ = 0;       // in the round
};

}  // namespace ddprun::agent
