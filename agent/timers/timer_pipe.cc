// SPDX-License-Identifier: Apache-2.0
#include "agent/timers/timer_pipe.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/json/value.hpp>
#include <cerrno>
#include <chrono>
#include <cmath>

#include "common/env_names.h"
#include "common/error.h"
#include "common/json.h"
#include "common/process_facts.h"
#include "common/process_stat.h"
#include "common/signal_names.h"
#include "common/text.h"
#include "common/unique_fd.h"
#include "rendezvous/asio/waits.h"

namespace ddprun::agent {
namespace {

namespace json = boost::json;

constexpr std::int64_t kMostPid = 1 << 22;  // PID_MAX_LIMIT
constexpr std::int64_t kMostSignal = 64;

std::optional<std::int64_t> integer(const json::object& object, std::string_view name) {
  const json::value* value = object.if_contains(name);
  if (value == nullptr || !value->is_int64()) return std::nullopt;
  return value->get_int64();
}

// Reads a number: Python writes 5.0 and 5.
std::optional<double> real(const json::object& object, std::string_view name) {
  if (const auto whole = integer(object, name)) return static_cast<double>(*whole);
  const json::value* value = object.if_contains(name);
  if (value == nullptr || !value->is_double() || !std::isfinite(value->get_double())) {
    return std::nullopt;
  }
  return value->get_double();
}

using std::chrono::duration;
using std::chrono::system_clock;

constexpr char kName[] = "timers";
// The client's own limit: longer writes aren't atomic.
constexpr std::size_t kMostLineBytes = PIPE_BUF;

double wall_clock() { return duration<double>(system_clock::now().time_since_epoch()).count(); }

// Returns the local rank of the worker that is `pid` or its ancestor; −1: none.
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

std::optional<TimerRequest> parse_timer_request(std::string_view line) {
  const auto parsed = parse_object(line);
  if (!parsed) return std::nullopt;
  const json::object& object = *parsed;
  const auto pid = integer(object, "pid");
  const auto expires = real(object, "expiration_time");
  const auto signal = integer(object, "signal");
  const json::value* scope = object.if_contains("scope_id");
  if (!pid || *pid < 1 || *pid > kMostPid || !expires || !signal || *signal > kMostSignal ||
      scope == nullptr || !scope->is_string() ||
      scope->get_string().size() > TimerTable::kMostScopeBytes) {
    return std::nullopt;
  }
  TimerRequest request;
  request.pid = static_cast<pid_t>(*pid);
  request.scope = std::string(scope->get_string());
  request.expires = *expires;
  request.signal = *signal > 0 ? static_cast<int>(*signal) : 0;
  return request;
}

bool TimerTable::take(const TimerRequest& request, std::uint64_t begun) {
  const Key key{request.pid, request.scope};
  if (const auto found = timers_.find(key); found != timers_.end()) forget(found);
  if (request.expires < 0) return true;
  if (timers_.size() == kMostTimers) return false;
  timers_[key] = {request.expires, request.signal, begun};
  by_time_.emplace(request.expires, key);
  return true;
}

void TimerTable::forget(std::map<Key, Timer>::iterator timer) {
  by_time_.erase({timer->second.expires, timer->first});
  timers_.erase(timer);
}

std::optional<double> TimerTable::next() const {
  if (by_time_.empty()) return std::nullopt;
  return by_time_.begin()->first;
}

std::vector<TimerTable::Expired> TimerTable::expire(double now) {
  std::vector<Expired> all;
  while (!by_time_.empty() && by_time_.begin()->first <= now) {
    const pid_t pid = by_time_.begin()->second.first;
    Expired expired{pid, 0, by_time_.begin()->second.second, 0};
    const Timer* first = nullptr;
    const auto of_process = timers_.lower_bound({pid, ""});
    for (auto each = of_process; each != timers_.end() && each->first.first == pid; ++each) {
      const Timer& timer = each->second;
      expired.begun = timer.begun;
      const bool counts = timer.expires <= now && timer.signal > 0;
      if (!counts || (first != nullptr && first->expires <= timer.expires)) continue;
      first = &timer;
      expired.scope = each->first.second;
      expired.signal = timer.signal;
    }
    for (auto each = timers_.lower_bound({pid, ""});
         each != timers_.end() && each->first.first == pid;) {
      forget(each++);
    }
    all.push_back(std::move(expired));
  }
  return all;
}

std::string TimerPipe::path_of(const Environment& environment, const std::string& directory) {
  if (find_variable(environment, env::kEnableFileTimer) != "1") return {};
  const auto named = find_variable(environment, env::kTimerFile);
  // In a worker of another job the variable names that job's pipe.
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
  // An earlier round may have left a pipe.
  if (::lstat(path, &info) == 0 && S_ISFIFO(info.st_mode)) ::unlink(path);
  if (::mkfifo(path, S_IRUSR | S_IWUSR) != 0) throw_system_error("mkfifo " + options_.path, errno);
  // The pipe is open for writing, too. Otherwise it would end with each client that closes.
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
  // The wall clock may be set meanwhile, so the wait is limited.
  constexpr double kLongest = 86'400;
  const double wait = std::clamp(*next - wall_clock(), 0.0, kLongest);
  run_at(timer_,
         system_clock::now() + std::chrono::ceil<system_clock::duration>(duration<double>(wait)),
         [weak = weak_from_this()] {
           const auto self = weak.lock();
           if (!self || !self->pipe_.is_open()) return;
           for (const auto& expired : self->timers_.expire(wall_clock())) self->end(expired);
           self->await_next();
         });
}

// Signals the process that set the timer, if it still is the same one and belongs to this node's
// workers.
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
