// SPDX-License-Identifier: Apache-2.0
// A worker's connection to the agent on its node (docs/agent-socket.md). Owned by Session.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>

#include "common/clock.h"
#include "common/unique_fd.h"

namespace ddprun {

class AgentChannel {
 public:
  // Connects to the socket at `path` and says who we are. Throws Error(kUnavailable), also where
  // the agent refuses us, with its reason; Error(kTimeout).
  AgentChannel(const std::string& path, std::uint64_t round, int local_rank, Deadline deadline);

  // The progress page's memory, which came with the welcome.
  const UniqueFd& page() const { return page_; }

  // Events. Any thread; they never wait: what the agent doesn't take is dropped. False: it was.
  bool first_step(std::uint64_t step);
  bool exclude_node(std::string_view reason);
  bool stop_job(std::string_view reason, int exit_code);  // 1 … 255

 private:
  bool send_line(const std::string& line);

  UniqueFd socket_;
  UniqueFd page_;
  std::mutex mutex_;  // a line is sent whole
};

}  // namespace ddprun
