// SPDX-License-Identifier: Apache-2.0
// A worker's connection to the agent on its node (docs/agent-socket.md). Owned by Session.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/clock.h"
#include "common/text.h"
#include "common/unique_fd.h"
#include "worker_sdk/core/flight_recorder.h"

namespace ddprun {

class AgentChannel {
 public:
  // Connects to the socket at `path` and says who we are. Throws Error(kUnavailable), also where
  // the agent refuses us, with its reason; Error(kTimeout).
  AgentChannel(const std::string& path, std::uint64_t round, int local_rank, Deadline deadline);

  // The same, but doesn't wait for the answer: call await_welcome() before anything else.
  AgentChannel(const std::string& path, std::uint64_t round, int local_rank);
  // Waits for the answer; false: none came in time. Throws Error(kUnavailable) if the agent refuses
  // us or is gone.
  bool await_welcome(Deadline deadline);

  // For a worker that was started before its node had a place in a round (round 0). Waits for the
  // place, and returns what changes in the environment, "NAME=value". Throws Error(kUnavailable)
  // where the agent goes. No deadline: a spare may wait for days; the agent ends it.
  std::vector<std::string> wait_for_place() {
    send_line(R"({"type":"wait_for_place"})");
    return receive_place(Deadline::after(std::chrono::milliseconds::max()));
  }

  // For a worker that has lost a peer (docs/inplace.md), on a connection that is for this alone.
  // Asks for its place in the next round and waits for it. Returns all variables of the place, as
  // "NAME=value". Throws Error(kUnavailable) if the agent ends the connection, Error(kTimeout).
  std::vector<std::string> ask_to_recover(Deadline deadline) {
    send_line(R"({"type":"recover"})");
    return receive_place(deadline);
  }

  // The progress page's memory, which came with the welcome.
  const UniqueFd& page() const { return page_; }

  // After the welcome, on one thread: waits until the agent asks for the flight recorder. Returns
  // the request's number. nullopt: `stop`, a descriptor, can be read, or the agent has ended the
  // connection.
  std::optional<std::uint64_t> await_request(int stop);

  // Events. Any thread; they never wait: what the agent doesn't take is dropped. False: it was.
  // `connecting`: how long this worker took to make communicators.
  bool first_step(std::uint64_t step, std::chrono::nanoseconds connecting) {
    return send_line(concat(R"({"type":"first_step","step":)", step, R"(,"connecting_us":)",
                            connecting.count() / 1000, "}"));
  }

  bool exclude_node(std::string_view reason);
  bool stop_job(std::string_view reason, int exit_code);  // 1 … 255
  // `file`: where the flight recorder is about to be written; empty: nowhere.
  bool operation_failed(const OperationFailure& failure, std::string_view file);
  // The flight recorder is written whenever the agent asks. It was, to `file`; empty: it could not
  // be. `request`: the number that await_request gave; 0: an operation failed.
  bool keeps_record() { return send_line(R"({"type":"keeps_record"})"); }
  // This worker could go on in place.
  bool offers_recovery() { return send_line(R"({"type":"offers_recovery"})"); }
  bool recorded(std::string_view file, std::uint64_t request);

 private:
  bool send_line(const std::string& line);

  std::optional<std::string> take_line();  // of what was received; nullopt: no whole one
  std::string receive_line(Deadline deadline);
  std::vector<std::string> receive_place(Deadline deadline);

  UniqueFd socket_;
  std::string received_;  // and not yet looked at
  UniqueFd page_;
  std::mutex mutex_;        // a line is sent whole
  bool is_broken_ = false;  // guarded by mutex_: nothing can be sent any more
};

}  // namespace ddprun
