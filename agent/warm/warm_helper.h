// SPDX-License-Identifier: Apache-2.0
// A node's warm helper (docs/warm.md): a Python process that has imported what the workers will,
// and forks them. io thread only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/watched_child.h"
#include "common/log_level.h"

namespace ddprun::agent {

struct WarmOptions {
  std::vector<std::string> modules;         // to import
  bool is_auto = false;                     // also imports what the workers had by their first step
  std::string cache;                        // a folder where their list is kept; empty: it isn't
  std::chrono::milliseconds limit{60'000};  // longest wait of a round for the imports
  // The time-out of its forks, during which this process waits.
  std::chrono::milliseconds answer_limit{2'000};
  // A file of this process (borrowed) with is_auto's list, for the helpers of a job; -1: none.
  int list = -1;
  // false: it imports a third of the time, and `limit` does not run, until when_loaded().
  bool in_a_hurry = true;

  bool is_wanted() const { return is_auto || !modules.empty(); }
};

// The parts of the workers' Python command line that the helper gets, too.
struct PythonCommand {
  std::vector<std::string> interpreter;  // with its flags
  std::string path;                      // sys.path[0]
  std::string program;                   // the script's path, or "-m MODULE"
};

// Parses the workers' command. nullopt: `argv` doesn't run a script or module by Python, or has a
// flag that changes what the script is. Relative paths start in the current directory.
std::optional<PythonCommand> python_command(const std::vector<std::string>& argv);

class WarmHelper : public std::enable_shared_from_this<WarmHelper> {
 public:
  using Tell = std::function<void(LogLevel, const std::string&)>;

  // Begins to import. `argv`: the workers' command. If it is no Python, or can't be started, `tell`
  // says so, and the workers start without a helper. `ended` is called when the helper's process
  // has ended; its children are this process' then.
  static std::shared_ptr<WarmHelper> start(boost::asio::io_context& io, const WarmOptions& options,
                                           const std::vector<std::string>& argv,
                                           std::vector<std::string> environment, Tell tell,
                                           std::function<void()> ended);
  ~WarmHelper();

  bool is_loading() const { return state_ == State::kLoading; }
  pid_t pid() const;                                                     // 0: there is none
  bool is_lost() const { return state_ == State::kGone && was_ready_; }  // a new helper may work
  // Must be called while it is loading, which is no longer slow then. Calls `loaded` once, from the
  // io context: the helper is ready, or has failed, which `tell` has said.
  void when_loaded(std::function<void()> loaded);

  // Starts the warden `program` with its descriptors, and below it `num_workers` children that wait
  // to become workers (agent/warden/protocol.h). The warden is a child of this process, and its
  // first report waits at `ours`, the other end of `socket`. nullopt: the workers start without the
  // helper, as `tell` has said. `cgroup` −1: there is none.
  std::optional<Child> start_warden(const std::string& program,
                                    const std::vector<std::string>& arguments, int socket, int ours,
                                    int cgroup, int num_workers);
  // Returns why the workers of the last start_warden() begin without imports; empty: they have
  // them.
  const std::string& why_cold() const { return why_cold_; }
  // Ends the process; no event comes any more.
  void close();

 private:
  enum class State { kLoading, kReady, kBusy, kGone };  // kBusy: imports more while workers run

  WarmHelper(boost::asio::io_context& io, const WarmOptions& options, Tell tell,
             std::function<void()> ended);
  void launch(const WarmOptions& options, const PythonCommand& python,
              std::vector<std::string> environment);
  void limit_imports();  // begins their time-out, if it hasn't begun
  void wait_for_message();
  void heard(const std::string& text);
  bool send(const std::string& order, const std::vector<int>& descriptors);
  void loaded(State state);
  void lost(const std::string& why);
  // nullopt: there is nothing now; empty: the helper has ended.
  std::optional<std::string> receive();

  const Tell tell_;
  const std::function<void()> ended_;
  const std::chrono::milliseconds import_limit_;
  const std::chrono::milliseconds answer_limit_;
  bool is_limited_ = false;  // the imports' time-out has begun
  State state_ = State::kLoading;
  bool was_ready_ = false;
  bool is_empty_ = false;  // it is ready, and has imported nothing
  std::string why_cold_;
  std::shared_ptr<WatchedChild> child_;  // shared with its wait under way
  boost::asio::posix::stream_descriptor socket_;
  boost::asio::steady_timer limit_;
  std::function<void()> loaded_;
};

}  // namespace ddprun::agent
