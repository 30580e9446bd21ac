// SPDX-License-Identifier: Apache-2.0
// The socket on which this node's workers of one round ask for their progress pages and say what
// only they know (docs/agent-socket.md). io thread only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "agent/private_directory.h"
#include "agent/progress_pages.h"
#include "agent/worker_line.h"
#include "common/log_level.h"

namespace ddprun::agent {

// Called from the io context.
struct AgentSocketEvents {
  // Hello of an observer, FirstStep, ExcludeNode, StopJob, WaitForPlace, OperationFailed, Recorded
  // or AsksToRecover, of the worker `local_rank`.
  std::function<void(int local_rank, const WorkerLine&)> said;
  std::function<void(LogLevel, const std::string&)> tell;  // one line for the user
};

class AgentSocket {
 public:
  // A name that nobody has, below `parent`, or below /tmp where that path is too long for a socket.
  // It is chosen before the directory is made, so that a warden that is there first removes it,
  // whenever this process is killed.
  static std::string new_directory(const std::string& parent);

  // The socket's name in its directory.
  static std::string path_in(const std::string& directory);

  // Makes the directory and listens in it. `pages` outlives this; its round is this socket's.
  // Throws Error(kSystem) or Error(kResourceExhausted).
  AgentSocket(boost::asio::io_context& io, ProgressPages& pages, const std::string& directory,
              AgentSocketEvents events);
  // Ends all connections; removes socket and directory.
  ~AgentSocket();
  AgentSocket(const AgentSocket&) = delete;
  AgentSocket& operator=(const AgentSocket&) = delete;

  const std::string& path() const;
  // For a worker that was started before its node had a place (the pages' round is 0). The worker
  // may say that it waits for one (waits_for_place()). Then assign() sends it the changed variables
  // of its environment, as "NAME=value". False: the worker has gone.
  bool waits_for_place(int local_rank) const;
  bool assign(int local_rank, const std::vector<std::string>& environment);
  // The same for a worker that goes on in place (docs/inplace.md): whether it has offered to, and
  // whether it has asked. Its place in the round that the pages have begun comes with go_on(). The
  // connections of the round before end with end_old_round().
  bool offers_recovery(int local_rank) const;
  bool asks_to_recover(int local_rank) const;
  bool go_on(int local_rank, const std::vector<std::string>& environment);
  void end_old_round();
  // The warden removes this directory if the agent can't any more.
  const std::string& directory() const;

  // Asks every worker that keeps a flight recorder to write it. Never waits: who doesn't take it
  // isn't asked.
  void ask_for_records();

  // Calls once, now or later in the io context. That is when all who were asked have answered their
  // last request, or gone; at most kRecordTime after that. A second call takes the place of the
  // first; null: of none.
  static constexpr std::chrono::milliseconds kRecordTime{2'000};
  void when_recorded(std::function<void()> call);

  // Hears at once what has arrived: a worker's last words come before the news of its end.
  void read_pending();

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;  // second owner: handlers of the io context that are under way
};

}  // namespace ddprun::agent
