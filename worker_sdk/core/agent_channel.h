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
  // Connects to the socket at `path` and sends this worker's place. Throws Error(kUnavailable),
  // also with the agent's reason if it refuses this worker; Error(kTimeout).
  AgentChannel(const std::string& path, std::uint64_t round, int local_rank, Deadline deadline);

  // The same, but doesn't wait for the answer: call await_welcome() before anything else.
  AgentChannel(const std::string& path, std::uint64_t round, int local_rank);
  // Waits for the answer; false: none came in time. Throws Error(kUnavailable) if the agent refuses
  // this worker or is gone.
  bool await_welcome(Deadline deadline);

  // For a worker that was started before its node had a place in a round (round 0). Waits for the
  // place, and returns what changes in the environment, "NAME=value". Throws Error(kUnavailable) if
  // the agent ends. No deadline: a spare may wait for days; the agent ends it.
  std::vector<std::string> wait_for_place() {
    send_line(R"({"type":"wait_for_place"})");
    return receive_place(Deadline::after(std::chrono::milliseconds::max()));
  }

  // For a worker that has lost a peer (docs/inplace.md), on a connection for this alone. Asks for
  // its place in the next round and waits for it. Returns all variables of the place, as
  // "NAME=value". Throws Error(kUnavailable) if the agent ends the connection, Error(kTimeout).
  std::vector<std::string> ask_to_recover(Deadline deadline) {
    send_line(R"({"type":"recover"})");
    return receive_place(deadline);
  }

  // The progress page's memory, which came with the welcome.
  const UniqueFd& page() const { return page_; }

  // Waits, after the welcome and on one thread, until the agent asks for the flight recorder.
  // Returns the request's number. nullopt: the descriptor `stop` can be read, or the agent has
  // ended the connection.
  std::optional<std::uint64_t> await_request(int stop);

  // Sends an event. Any thread; never waits. False: the agent didn't take the event, which is
  // dropped. `connecting` is the time that this worker took to make communicators.
  bool first_step(std::uint64_t step, std::chrono::nanoseconds connecting) {
    return send_line(concat(R"({"type":"first_step","step":)", step, R"(,"connecting_us":)",
                            connecting.count() / 1000, "}"));
  }

  bool exclude_node(std::string_view reason);
  bool stop_job(std::string_view reason, int exit_code);  // exit_code: 1 … 255
  // `file` is the file that the flight recorder will be written to; empty: none.
  bool operation_failed(const OperationFailure& failure, std::string_view file);
  // keeps_record(): this worker writes the flight recorder whenever the agent asks. recorded(): it
  // was written to `file` (empty: it could not be). `request` is the number that await_request
  // gave; 0: an operation failed.
  bool keeps_record() { return send_line(R"({"type":"keeps_record"})"); }
  // Says that this worker can go on in place.
  bool offers_recovery() { return send_line(R"({"type":"offers_recovery"})"); }
  bool recorded(std::string_view file, std::uint64_t request);

 private:
  bool send_line(const std::string& line);

  std::optional<std::string> take_line();  // from received_; nullopt: no whole line yet
  std::string receive_line(Deadline deadline);
  std::vector<std::string> receive_place(Deadline deadline);

  UniqueFd socket_;
  std::string received_;  // received but not yet looked at
  UniqueFd page_;
  std::mutex mutex_;        // held while a line is sent, so that it is sent whole
  bool is_broken_ = false;  // guarded by mutex_: nothing can be sent any more
};

}  // namespace ddprun
