// SPDX-License-Identifier: Apache-2.0
// ddprund's log, whose reader may be stuck, about peers that may be hostile: a line that finds no
// room at once is dropped and counted, so that the daemon serves on; so is a warning beyond
// kWarningsAtOnce and kWarningsPerSecond, so that a flood doesn't fill the disk.
#pragma once

#include <spdlog/sinks/base_sink.h>

#include <cstddef>
#include <cstdint>
#include <mutex>

#include "common/flood_limit.h"

namespace ddprun::rendezvous {

// The next line that finds room comes behind one that says how many were dropped. A line is cut to
// 4096 bytes (512 on a terminal), what poll(2)'s "writable" promises. `fd` stays in blocking mode,
// since it may be shared with other processes.
class DroppingSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  static constexpr double kWarningsAtOnce = 1000;
  static constexpr double kWarningsPerSecond = 10;

  explicit DroppingSink(int fd);

 private:
  using Message = spdlog::details::log_msg;

  void sink_it_(const Message& message) override;
  void flush_() override {}
  // Never waits; false: there is no room now. `dropped` says how many were, and comes first; null:
  // none.
  bool take(const Message* dropped, const Message& message);
  void append(const Message& message, spdlog::memory_buf_t& lines);

  const int fd_;
  const std::size_t max_bytes_;
  std::uint64_t num_dropped_ = 0;
  FloodLimit warnings_{kWarningsAtOnce, kWarningsPerSecond};
};

}  // namespace ddprun::rendezvous
