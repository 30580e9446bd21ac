// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/spawn.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "common/child_process.h"
#include "common/clock.h"
#include "common/env_names.h"
#include "common/environment.h"
#include "common/fd_text.h"
#include "common/random_id.h"
#include "common/signal_names.h"
#include "common/text.h"
#include "common/throw_error.h"
#include "common/unique_fd.h"
#include "worker_sdk/core/local_store.h"

namespace ddprun {
namespace {

constexpr int kFailed = 1;
constexpr int kMaxSpawned = 4096;  // ranks on one machine
// After a rank has lost a peer, the parent waits this long for the peer's end, or for its reason.
// On a busy machine the peer may need seconds to unwind.
constexpr std::chrono::milliseconds kCauseWait{5'000};

constexpr char kProgram[] = "/proc/self/exe";  // also if its file was replaced or removed
// A rank writes kReached to its pipe when it has reached spawn(). Then comes at most one failure:
// the code as a byte ('0' + ErrorCode, or '-'), and the text. All of it fits the pipe, so the
// parent need not read before the rank's end.
constexpr char kReached = 'R';
constexpr char kNoCode = '-';
constexpr std::size_t kMaxText = 4000;

// A rank finds its own call by counting.
std::atomic<int> num_calls{0};
std::atomic<bool> is_under_way{false};

// It is global, because a signal handler has no other way to find it.
std::atomic<int> pipe_of_handler{-1};

// Makes SIGINT and SIGTERM events to wait for. While it lives, it replaces the program's own
// handlers for them. A signal that the program ignores stays ignored. An ignored SIGCHLD gets
// its default meanwhile, since the kernel would forget how children ended. At most one object at a
// time in a process.
class ParentSignals {
 public:
  ParentSignals() : pipe_(make_pipe(O_NONBLOCK)) {
    pipe_of_handler = pipe_.write_end.get();
    struct sigaction action {};
    action.sa_handler = note;
    action.sa_flags = SA_RESTART;
    ::sigaction(SIGINT, nullptr, &interrupt_);
    ::sigaction(SIGTERM, nullptr, &terminate_);
    ::sigaction(SIGCHLD, nullptr, &child_);
    if (interrupt_.sa_handler != SIG_IGN) ::sigaction(SIGINT, &action, nullptr);
    if (terminate_.sa_handler != SIG_IGN) ::sigaction(SIGTERM, &action, nullptr);
    if (child_.sa_handler != SIG_IGN && !(child_.sa_flags & SA_NOCLDWAIT)) return;
    struct sigaction plain {};
    plain.sa_handler = SIG_DFL;
    ::sigaction(SIGCHLD, &plain, nullptr);
  }
  // Restores the program's handlers.
  ~ParentSignals() {
    ::sigaction(SIGINT, &interrupt_, nullptr);
    ::sigaction(SIGTERM, &terminate_, nullptr);
    ::sigaction(SIGCHLD, &child_, nullptr);
    pipe_of_handler = -1;
  }

  // Readable when there is a signal to take().
  int fd() const { return pipe_.read_end.get(); }

  // Returns the next signal that came; 0: none. Never blocks.
  int take() {
    char byte = 0;
    return ::read(fd(), &byte, 1) == 1 ? byte : 0;
  }

 private:
  static void note(int signal_number) {
    const int saved = errno;
    const char byte = static_cast<char>(signal_number);
    if (::write(pipe_of_handler.load(), &byte, 1) < 0) {
      // The pipe is full: enough signals wait already.
    }
    errno = saved;
  }

  const Pipe pipe_;
  struct sigaction interrupt_ {
  }, terminate_{}, child_{};  // the program's handlers
};

std::vector<std::string> own_arguments() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  std::vector<std::string> arguments;
  for (std::size_t at = 0; at < bytes.size();) {
    const std::size_t end = std::min(bytes.find('\0', at), bytes.size());
    arguments.push_back(bytes.substr(at, end - at));
    at = end + 1;
  }
  if (arguments.empty()) {
    throw Error(ErrorCode::kSystem, "spawn: /proc/self/cmdline is empty or missing: mount /proc");
  }
  return arguments;
}

// How a rank ended.
struct RankEnd {
  bool is_well = false;  // the function returned, or the rank left with 0 from within it
  std::string text;      // "failed: …", "was ended by SIGKILL", "ended with exit code 3", …
  std::optional<ErrorCode> code;  // of the Error that it threw
};

// A rank: this program started once more. One thread uses it: the kernel ends the rank when the
// thread that started it ends.
class RankProcess {
 public:
  // Starts /proc/self/exe with this process' arguments, `environment` and DDPRUN_SPAWN = "<call>
  // <rank> <descriptor>". The rank has default signal handlers and the caller's signal mask. Throws
  // Error: no process, no descriptor.
  RankProcess(int call, int rank, Environment environment) : rank_(rank) {
    // Non-blocking: a child process of the rank may hold the other end open after the rank has
    // ended.
    Pipe pipe = make_pipe(O_NONBLOCK);
    report_ = std::move(pipe.read_end);
    const int rank_end = pipe.write_end.get();
    environment[env::kSpawn] = concat(call, ' ', rank, ' ', rank_end);
    ChildCommand command{.argv = own_arguments(),
                         .environment = to_strings(environment),
                         .program = kProgram,
                         .kept_descriptor = rank_end,
                         .dies_with_us = true,
                         .keeps_ignored = true};
    ::pthread_sigmask(SIG_BLOCK, nullptr, &command.blocked);
    try {
      child_ = start_child(command);
    } catch (const StartError& error) {
      throw_system_error(concat("spawn: execve of ", kProgram), error.error_number());
    }
  }
  RankProcess(RankProcess&&) = default;
  // Kills the rank if it has not been reaped.
  ~RankProcess() {
    if (!is_running()) return;
    signal(SIGKILL);
    ::waitpid(child_.pid, nullptr, 0);
  }

  int rank() const { return rank_; }
  bool is_running() const { return child_.pidfd.valid(); }
  int pidfd() const { return child_.pidfd.get(); }  // readable once it has ended
  void signal(int signal_number) {                  // no effect if it has ended
    if (is_running()) ::kill(child_.pid, signal_number);
  }

  // Call it after pidfd() was readable.
  RankEnd reap() {
    siginfo_t info{};
    int result;
    do {
      result = ::waitid(P_PID, static_cast<id_t>(child_.pid), &info, WEXITED);
    } while (result != 0 && errno == EINTR);
    child_.pidfd.reset();
    const std::string said = read_text(report_.get(), kMaxText + 2).text;
    report_.reset();

    RankEnd end;
    const bool has_reached = !said.empty() && said[0] == kReached;
    if (said.size() > 1) {
      if (said[1] != kNoCode) end.code = static_cast<ErrorCode>(said[1] - '0');
      end.text = "failed: " + said.substr(2);
    } else if (result != 0) {  // the program has a handler that reaps all children
      end.text = "ended, and something else in this program took its exit status (waitpid)";
    } else if (info.si_code != CLD_EXITED) {
      end.text = "was ended by " + signal_name(info.si_status);
    } else if (info.si_status != 0) {
      end.text = concat("ended with exit code ", info.si_status,
                        has_reached ? "" : " before it came to spawn()");
    } else if (!has_reached) {
      end.text =
          "ended with exit code 0 before it came to spawn(): main() has to take the same way "
          "in a rank, up to this call";
    } else {
      end.is_well = true;
    }
    return end;
  }

 private:
  int rank_;
  Child child_;
  UniqueFd report_;  // the rank's report
};

// A rank's side of spawn(): the values of its DDPRUN_SPAWN.
struct SpawnMarker {
  int call, rank, report_fd;
};

// Returns this process' marker; nullopt: spawn() of this program didn't start it. Throws
// Error(kInvalidArgument) if the variable has been tampered with.
std::optional<SpawnMarker> find_spawn_marker() {
  const char* text = std::getenv(env::kSpawn);
  if (!text) return std::nullopt;
  SpawnMarker marker{};
  char more = 0;
  const int num_read =
      std::sscanf(text, "%d %d %d%c", &marker.call, &marker.rank, &marker.report_fd, &more);
  if (num_read == 3 && ::fcntl(marker.report_fd, F_GETFD) >= 0) return marker;
  throw_invalid("spawn: ", env::kSpawn, "=\"", text,
                "\" is not from a parent of this process: unset it");
}

[[noreturn]] void run_rank(const std::function<void(int)>& function, const SpawnMarker& marker) {
  ::unsetenv(env::kSpawn);
  ::fcntl(marker.report_fd, F_SETFD, FD_CLOEXEC);
  write_text(marker.report_fd, std::string(1, kReached));
  const auto fail = [&](std::optional<ErrorCode> code, const std::string& what) {
    std::fprintf(stderr, "ddprun: rank %d: %s\n", marker.rank, what.c_str());
    const char byte = code ? static_cast<char>('0' + static_cast<int>(*code)) : kNoCode;
    write_text(marker.report_fd, byte + what.substr(0, kMaxText));
    std::exit(kFailed);
  };
  try {
    function(marker.rank);
  } catch (const Error& error) {
    fail(error.code(), error.what());
  } catch (const std::exception& error) {
    fail(std::nullopt, error.what());
  } catch (...) {
    fail(std::nullopt, "something that is no std::exception was thrown");
  }
  std::exit(0);
}

Environment environment_of(int rank, int num_ranks, const Endpoint& master,
                           const std::string& run_id, const SpawnOptions& options) {
  Environment environment = current_environment();
  for (const std::string_view name : env::kOfWorkers) environment.erase(std::string(name));
  for (const auto& [name, value] : options.environment) environment[name] = value;
  const std::string number = std::to_string(rank), size = std::to_string(num_ranks);
  for (const char* name : {env::kRank, env::kLocalRank, env::kRoleRank}) environment[name] = number;
  for (const char* name : {env::kWorldSize, env::kLocalWorldSize, env::kRoleWorldSize}) {
    environment[name] = size;
  }
  environment[env::kGroupRank] = environment[env::kRestartCount] = environment[env::kMaxRestarts] =
      "0";
  environment[env::kGroupWorldSize] = environment[env::kRound] = "1";
  environment[env::kRoleName] = "default";
  environment[env::kMasterAddr] = environment[env::kNodeAddr] = environment[env::kMasterNodeAddr] =
      master.host;
  environment[env::kMasterPort] = std::to_string(master.port);
  environment[env::kRunId] = run_id;
  environment[env::kUseAgentStore] = "True";  // PyTorch's: rank 0 is a client of the store, too
  if (num_ranks > 1) environment.try_emplace(env::kOmpNumThreads, "1");
  return environment;
}

void check_call(const std::function<void(int)>& function, int num_ranks,
                const SpawnOptions& options) {
  const auto refuse = [](const auto&... why) { throw_invalid("spawn: ", why...); };
  if (const char* rank = std::getenv(env::kRank)) {
    refuse("this process is rank ", rank,
           " of a job already (RANK is set): start the program without ddprun or torchrun, "
           "and call spawn() outside of its ranks");
  }
  if (!function) refuse("there is no function to run");
  if (num_ranks < 1 || num_ranks > kMaxSpawned) {
    refuse(num_ranks, " ranks: give 1 to ", kMaxSpawned);
  }
  for (const std::string_view name : env::kOfWorkers) {
    if (options.environment.contains(std::string(name))) {
      refuse("options.environment has ", name, ", which each rank gets by itself");
    }
  }
}

// The ranks under way, and the rules that end them.
class Gang {
 public:
  Gang(std::vector<RankProcess> ranks, std::chrono::milliseconds grace)
      : ranks_(std::move(ranks)), grace_(grace) {}

  // Waits until no rank is left. Returns the rank that failed first and its failure, see failed();
  // nullopt: none failed.
  std::optional<std::pair<int, RankEnd>> wait(ParentSignals& signals) {
    while (num_running() > 0) {
      wait_for_event(signals);
      while (const int number = signals.take()) take_signal(number);
      for (RankProcess& rank : ranks_) {
        if (!rank.is_running() || !is_ended(rank)) continue;
        RankEnd end = rank.reap();
        if (!end.is_well) failed(rank.rank(), std::move(end));
      }
      if (cause_by_ && Deadline(*cause_by_).expired()) end_all(SIGTERM);
      if (kill_at_ && Deadline(*kill_at_).expired()) {
        kill_at_.reset();
        for (RankProcess& rank : ranks_) rank.signal(SIGKILL);
      }
    }
    return first_;
  }

  int signal_that_came() const { return signal_; }

 private:
  std::size_t num_running() const {
    return static_cast<std::size_t>(
        std::ranges::count_if(ranks_, [](const RankProcess& rank) { return rank.is_running(); }));
  }

  static bool is_ended(const RankProcess& rank) {
    pollfd event{rank.pidfd(), POLLIN, 0};
    return ::poll(&event, 1, 0) == 1;
  }

  void wait_for_event(const ParentSignals& signals) const {
    std::vector<pollfd> events = {{signals.fd(), POLLIN, 0}};
    for (const RankProcess& rank : ranks_) {
      if (rank.is_running()) events.push_back({rank.pidfd(), POLLIN, 0});
    }
    // As long as the ranks work there is no limit. After the first failure there is one.
    const auto& end = kill_at_ ? kill_at_ : cause_by_;
    const int limit = end ? Deadline(*end).poll_timeout_ms() : -1;
    if (::poll(events.data(), events.size(), limit) < 0 && errno != EINTR) {
      throw_system_error("spawn: poll", errno);
    }
  }

  // Notes a failure. A rank that lost a peer is not the cause: the peer may still unwind, and gets
  // kCauseWait to report its own failure.
  void failed(int rank, RankEnd end) {
    const bool is_cause = end.code != ErrorCode::kPeerLost;
    if (!first_ || (is_cause && cause_by_)) first_.emplace(rank, std::move(end));
    if (kill_at_) return;
    if (is_cause) return end_all(SIGTERM);
    if (!cause_by_) cause_by_ = Deadline::after(kCauseWait).at();
  }

  void take_signal(int number) {
    if (echo_.is_echo(number, Clock::now())) return;
    const bool is_second = signal_ != 0;
    if (!is_second) signal_ = number;
    end_all(is_second ? SIGKILL : SIGTERM);
  }

  void end_all(int signal_number) {
    for (RankProcess& rank : ranks_) rank.signal(signal_number);
    if (!kill_at_) kill_at_ = Deadline::after(grace_).at();
    cause_by_.reset();
  }

  std::vector<RankProcess> ranks_;
  const std::chrono::milliseconds grace_;
  std::optional<std::pair<int, RankEnd>> first_;
  std::optional<Clock::time_point> cause_by_;  // set while first_ is a rank that lost a peer
  std::optional<Clock::time_point> kill_at_;
  int signal_ = 0;
  SignalEcho echo_;
};

void run_parent(int call, int num_ranks, const SpawnOptions& options) {
  const LocalStore store;
  const std::string run_id = random_id();
  int signal_number = 0;
  std::optional<std::pair<int, RankEnd>> failure;
  {
    ParentSignals signals;
    std::vector<RankProcess> ranks;
    ranks.reserve(static_cast<std::size_t>(num_ranks));
    for (int rank = 0; rank < num_ranks; ++rank) {
      ranks.emplace_back(call, rank,
                         environment_of(rank, num_ranks, store.endpoint(), run_id, options));
    }
    Gang gang(std::move(ranks), options.grace);
    failure = gang.wait(signals);
    signal_number = gang.signal_that_came();
    if (signal_number == 0) signal_number = signals.take();  // after the last rank had ended
  }
  if (signal_number != 0) {
    ::raise(signal_number);
    throw_error(ErrorCode::kAborted, "spawn: ", signal_name(signal_number),
                " came: the ranks were ended");
  }
  if (!failure) return;
  const auto& [rank, end] = *failure;
  throw Error(end.code.value_or(ErrorCode::kPeerLost),
              concat("spawn: rank ", rank, " of ", num_ranks, " ", end.text));
}

}  // namespace

void spawn(const std::function<void(int rank)>& function, int num_ranks,
           const SpawnOptions& options) {
  const int call = ++num_calls;
  if (const auto marker = find_spawn_marker()) {
    if (marker->call != call) return;  // the parent has done this call before
    run_rank(function, *marker);
  }
  check_call(function, num_ranks, options);
  if (is_under_way.exchange(true)) {
    throw_invalid("spawn: another call is under way in this process: one at a time");
  }
  struct Guard {
    ~Guard() { is_under_way = false; }
  } guard;
  run_parent(call, num_ranks, options);
}

}  // namespace ddprun
