// SPDX-License-Identifier: Apache-2.0
#include "agent/timers/timer_pipe.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <cerrno>
#include <chrono>
#include <climits>
#include <utility>

#include "common/env_names.h"
#include "common/error.h"
#include "common/process_facts.h"
#include "common/process_stat.h"
#include "common/signal_names.h"
#include "common/unique_fd.h"

namespace ddprun::agent {
namespace {

using std::chrono::duration;
using std::chrono::system_clock;

constexpr char kName[] = "timers";
constexpr std::size_t kMostLineBytes = PIPE_BUF;  // the client's own limit: more isn't atomic

double wall_clock() { return duration<double>(system_clock::now().time_since_epoch()).count(); }

// The worker that is `pid` or above it; −1: none.
int worker_above(pid_t pid, const std::vector<pid_t>& workers) {
  constexpr int kMostLevels = 1000;
  ProcessStat stat;
  for (int level = 0; level < kMostLevels && pid > 1; ++level) {
    const auto found = std::find(workers.begin(), workers.end(), pid);
    if (found != workers.end()) return static_cast<int>(found - workers.begin());
    if (!read_process_stat(pid, &stat)) return -1;
    pid = stat.parent;
  }
  return -1;
}

}  // namespace

std::string TimerPipe::path_of(const Environment& environment, const std::string& directory) {
  if (find_variable(environment, env::kEnableFileTimer) != "1") return {};
  const auto named = find_variable(environment, env::kTimerFile);
  // In a worker of another job it is that one's.
  if (named && !named->empty() && !environment.contains(env::kRound)) return *named;
  return directory.empty() ? "" : directory + "/" + kName;
}

std::shared_ptr<TimerPipe> TimerPipe::open(boost::asio::io_context& io, TimerPipeOptions options) {
  std::shared_ptr<TimerPipe> self(new TimerPipe(io, std::move(options)));
  self->make();
  self->read();
  return self;
}

TimerPipe::TimerPipe(boost::asio::io_context& io, TimerPipeOptions options)
    : options_(std::move(options)), pipe_(io), timer_(io) {}

TimerPipe::~TimerPipe() { close(); }

void TimerPipe::make() {
  const char* path = options_.path.c_str();
  struct stat info {};
  if (::lstat(path, &info) == 0 && S_ISFIFO(info.st_mode)) ::unlink(path);  // of an earlier round
  if (::mkfifo(path, S_IRUSR | S_IWUSR) != 0) throw_system_error("mkfifo " + options_.path, errno);
  // For writing, too: without it each client that closes would be the pipe's end.
  UniqueFd fd(::open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW));
  if (!fd) throw_system_error("open " + options_.path, errno);
  pipe_.assign(fd.release());
}

void TimerPipe::read() {
  pipe_.async_read_some(
      boost::asio::buffer(buffer_),
      [weak = weak_from_this()](const boost::system::error_code& error, std::size_t num_bytes) {
        const auto self = weak.lock();
        if (error || !self || !self->pipe_.is_open()) return;
        std::string_view rest(self->buffer_.data(), num_bytes);
        for (;;) {
          const std::size_t end = rest.find('\n');
          if (!self->skipping_) self->line_.append(rest.substr(0, end));
          if (self->line_.size() > kMostLineBytes) {
            self->skipping_ = true;
            self->line_.clear();
            self->complain("a request is longer than " + std::to_string(kMostLineBytes) + " bytes");
          }
          if (end == std::string_view::npos) break;
          if (!std::exchange(self->skipping_, false)) self->take(self->line_);
          self->line_.clear();
          rest.remove_prefix(end + 1);
        }
        self->await_next();
        self->read();
      });
}

void TimerPipe::take(std::string_view line) {
  const auto request = parse_timer_request(line);
  if (!request) return complain("a request can't be read: " + one_line(line.substr(0, 200)));
  const auto begun = start_ticks(request->pid);
  if (!begun) return;  // it has ended
  if (!timers_.take(*request, *begun)) {
    complain(concat("there are ", TimerTable::kMostTimers, " already"));
  }
}

void TimerPipe::await_next() {
  const auto next = timers_.next();
  if (!next) {
    timer_.cancel();
    return;
  }
  // The wall clock may be set meanwhile: it is looked at again.
  constexpr double kLongest = 86'400;
  const double wait = std::clamp(*next - wall_clock(), 0.0, kLongest);
  timer_.expires_at(system_clock::now() +
                    std::chrono::ceil<system_clock::duration>(duration<double>(wait)));
  timer_.async_wait([weak = weak_from_this()](const boost::system::error_code& error) {
    const auto self = weak.lock();
    if (error || !self || !self->pipe_.is_open()) return;
    for (const auto& expired : self->timers_.expire(wall_clock())) self->end(expired);
    self->await_next();
  });
}

// Only a process of this node's workers, and only the very one that set the timer.
void TimerPipe::end(const TimerTable::Expired& expired) {
  const UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, expired.pid, 0)));
  if (!process || start_ticks(expired.pid) != expired.begun) return;
  const std::vector<pid_t> workers = options_.workers();
  const int local_rank = worker_above(expired.pid, workers);
  const std::string what =
      concat("timer \"", one_line(expired.scope), "\" of process ", expired.pid, " has expired");
  if (local_rank < 0) return complain(what + ", but that is no process of this node's workers");
  const std::string who = concat("rank ", options_.global_rank(local_rank), ": ", what);
  if (expired.signal == 0) {
    return options_.tell(LogLevel::kWarning, who + "; it asked for no signal");
  }
  const std::string how = "sending " + signal_name(expired.signal);
  options_.tell(LogLevel::kWarning, who + ": " + how);
  reasons_[workers[static_cast<std::size_t>(local_rank)]] = what;
  ::syscall(SYS_pidfd_send_signal, process.get(), expired.signal, nullptr, 0);
}

std::string TimerPipe::reason(pid_t worker) const {
  const auto found = reasons_.find(worker);
  return found == reasons_.end() ? "" : found->second;
}

void TimerPipe::complain(const std::string& text) {
  if (!complaints_.admit(Clock::now())) return;
  options_.tell(LogLevel::kWarning, concat(env::kTimerFile, ": ", text));
}

void TimerPipe::close() {
  if (!pipe_.is_open()) return;
  struct stat ours {
  }, there{};
  const bool is_ours = ::fstat(pipe_.native_handle(), &ours) == 0 &&
                       ::lstat(options_.path.c_str(), &there) == 0 && ours.st_dev == there.st_dev &&
                       ours.st_ino == there.st_ino;
  if (is_ours) ::unlink(options_.path.c_str());
  boost::system::error_code ignored;
  pipe_.close(ignored);
  timer_.cancel();
}

}  // namespace ddprun::agent
