// SPDX-License-Identifier: Apache-2.0
// ddprund's log on a descriptor whose reader may be stuck, about peers that may be hostile: a line
// that finds no room at once is dropped and counted, so that the daemon serves on; so is a warning
// beyond kWarningsAtOnce and kWarningsPerSecond, so that a flood doesn't fill the disk.
#pragma once

#include <spdlog/sinks/base_sink.h>

#include <cstdint>
#include <mutex>

#include "common/flood_limit.h"

namespace ddprun::rendezvous {

// The next line that finds room comes behind one that says how many were dropped. A line is cut to
// 4096 bytes (512 on a terminal), what poll(2)'s "writable" promises; `fd` stays in blocking mode,
// since it may be shared with other processes.
class DroppingSink : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit DroppingSink(int fd);

  static constexpr double kWarningsAtOnce = 1000;
  static constexpr double kWarningsPerSecond = 10;

 private:
  void sink_it_(const spdlog::details::log_msg& message) override;
  void flush_() override {}

  const int fd_;
  const std::size_t max_bytes_;
  std::uint64_t num_dropped_ = 0;
  FloodLimit warnings_{kWarningsAtOnce, kWarningsPerSecond};
};

}  // namespace ddprun::rendezvous
