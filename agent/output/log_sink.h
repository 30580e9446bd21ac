// SPDX-License-Identifier: Apache-2.0
// Where the thread that writes log files (log_queue.h) puts bytes. That thread only.
#pragma once

#include <string_view>

namespace ddprun::agent {

class LogSink {
 public:
  LogSink() = default;
  virtual ~LogSink() = default;
  LogSink(const LogSink&) = delete;
  LogSink& operator=(const LogSink&) = delete;

  // What was queued meanwhile, in its order. Says by itself what it can't write.
  virtual void write(std::string_view bytes) = 0;
};

}  // namespace ddprun::agent
