// SPDX-License-Identifier: Apache-2.0
#include "agent/gpu/gpu_helper.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "common/env_names.h"
#include "common/error.h"
#include "common/log.h"
#include "common/process_facts.h"
#include "common/text.h"
#include "rendezvous/asio/waits.h"

namespace ddprun::agent {
namespace {

constexpr std::size_t kMaxAnswerBytes = 1 << 20;

// Returns the size of the answer's lines; nullopt: the answer isn't complete yet.
std::optional<std::size_t> end_of_lines(std::string_view text) {
  const std::string_view end(kGpuAnswerEnd);
  if (!text.ends_with(end)) return std::nullopt;
  const std::size_t size = text.size() - end.size();
  return size == 0 || text[size - 1] == '\n' ? std::optional(size) : std::nullopt;
}

// The time between two questions. NVML has no event for this; a list takes about a millisecond.
constexpr std::chrono::milliseconds kInterval{10};

bool is_alive(std::int64_t pid) {
  return ::kill(static_cast<pid_t>(pid), 0) == 0 || errno == EPERM;
}

}  // namespace

bool may_have_gpus() {
  const char* chosen = std::getenv(env::kNvmlLibrary);
  return (chosen != nullptr && *chosen != '\0') || has_nvidia_driver();
}

std::shared_ptr<GpuHelper> GpuHelper::start(boost::asio::io_context& io,
                                            const std::string& program) {
  if (!may_have_gpus()) return nullptr;
  try {
    // A socket and no pipe: a write to a pipe whose reader has died sends SIGPIPE.
    auto [request_read, request_write] = make_socket_pair(SOCK_STREAM);
    Pipe answers = make_pipe(O_NONBLOCK);
    ::fcntl(answers.write_end.get(), F_SETFL, 0);
    auto child =
        WatchedChild::start_helper(io, program, request_read.get(), answers.write_end.get());
    return std::shared_ptr<GpuHelper>(
        new GpuHelper(io, std::move(child), std::move(request_write), answers.read_end.release()));
  } catch (const Error& error) {
    log_warning(error.what());
    return nullptr;
  }
}

GpuHelper::GpuHelper(boost::asio::io_context& io, std::shared_ptr<WatchedChild> child,
                     UniqueFd requests, int answer_fd)
    : child_(std::move(child)), requests_(std::move(requests)), answers_(io, answer_fd) {}

GpuHelper::~GpuHelper() { child_->signal(SIGKILL); }

bool GpuHelper::ask(GpuRequest request, Done done) {
  if (done_) return false;
  done_ = std::move(done);
  const char letter = static_cast<char>(request);
  if (answers_.is_open() && ::send(requests_.get(), &letter, 1, MSG_NOSIGNAL | MSG_DONTWAIT) == 1) {
    read_answer();
    return true;
  }
  boost::asio::post(answers_.get_executor(), [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->lost();
  });
  return true;
}

void GpuHelper::read_answer() {
  when_readable(answers_, [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (!self) return;
    std::array<char, 16384> buffer;
    const ssize_t size = ::read(self->answers_.native_handle(), buffer.data(), buffer.size());
    if (size > 0) self->text_.append(buffer.data(), static_cast<std::size_t>(size));
    const bool ended = size == 0 || (size < 0 && errno != EAGAIN);
    if (ended || self->text_.size() > kMaxAnswerBytes) return self->lost();
    const auto end = end_of_lines(self->text_);
    if (!end) return self->read_answer();
    std::string lines = std::exchange(self->text_, {});
    lines.resize(*end);
    const Done done = std::exchange(self->done_, nullptr);
    done(lines);
  });
}

// Ends the helper: there is no NVML here, or it broke. Nothing is known from now on.
void GpuHelper::lost() {
  boost::system::error_code ignored;
  answers_.close(ignored);
  child_->signal(SIGKILL);
  if (const Done done = std::exchange(done_, nullptr)) done(std::nullopt);
}

std::optional<int> count_gpus(const std::string& program, Deadline deadline) {
  boost::asio::io_context io;
  auto helper = GpuHelper::start(io, program);
  if (!helper) return std::nullopt;
  std::optional<int> count;
  bool has_ended = false;
  helper->ask(GpuRequest::kCount, [&](const std::optional<std::string>& lines) {
    if (lines) count = std::atoi(lines->c_str());
    has_ended = true;
    io.stop();
  });
  io.run_until(deadline.at());
  if (!has_ended) {
    throw Error(ErrorCode::kTimeout, "the NVIDIA driver does not say how many GPUs there are");
  }
  helper.reset();  // kills the process
  io.restart();
  io.run_for(std::chrono::seconds(1));  // until the process is reaped
  return count;
}

LazyGpuHelper::LazyGpuHelper(boost::asio::io_context& io, std::string program)
    : LazyGpuHelper(io, std::move(program), Limits{}) {}

LazyGpuHelper::LazyGpuHelper(boost::asio::io_context& io, std::string program, const Limits& limits)
    : io_(io),
      program_(std::move(program)),
      limits_(limits),
      wait_(limits.first_wait),
      alive_(std::make_shared<bool>(true)) {
  if (!program_.empty()) start_at_.emplace();  // at the first question
}

LazyGpuHelper::~LazyGpuHelper() = default;

void LazyGpuHelper::ask(GpuRequest request,
                        std::function<void(const std::string& lines)> answered) {
  if (!helper_) start();
  if (!helper_) return;
  helper_->ask(request, [this, alive = std::weak_ptr(alive_),
                         answered = std::move(answered)](const std::optional<std::string>& lines) {
    if (alive.expired()) return;
    if (!lines) return lost();
    has_answered_ = true;
    wait_ = limits_.first_wait;
    answered(*lines);
  });
}

void LazyGpuHelper::start() {
  if (!start_at_ || Clock::now() < *start_at_) return;
  const bool is_first = *start_at_ == Clock::time_point();
  helper_ = GpuHelper::start(io_, program_);
  if (!helper_ && is_first) start_at_.reset();
  if (!helper_ && !is_first) lost();
}

void LazyGpuHelper::lost() {
  // A helper that never answered, as without NVML, needs no warning.
  if (std::exchange(has_answered_, false)) {
    log_warning("ddprun-gpus has ended; until it is started again, in ", wait_.count() / 1000.0,
                " s at the earliest, nothing is known of the GPUs");
  }
  helper_.reset();
  start_at_ = Clock::now() + wait_;
  wait_ = std::min(wait_ * 2, limits_.longest_wait);
}

std::shared_ptr<GpuMemory> GpuMemory::open(boost::asio::io_context& io,
                                           const std::string& program) {
  auto helper = GpuHelper::start(io, program);
  if (!helper) return nullptr;
  std::shared_ptr<GpuMemory> memory(new GpuMemory(io, program, std::move(helper)));
  memory->ask();
  return memory;
}

GpuMemory::GpuMemory(boost::asio::io_context& io, const std::string& program,
                     std::shared_ptr<GpuHelper> helper)
    : io_(io), program_(program), helper_(std::move(helper)), limit_(io), next_(io) {}

void GpuMemory::when_freed(std::chrono::milliseconds limit, Done done) {
  done_ = std::move(done);
  ++num_waits_;
  is_heard_ = false;
  last_ = {};
  if (is_silent_ || !helper_) {
    start_again();
    boost::asio::post(io_, [weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->finish("");
    });
    return;
  }
  waited_ = limit;
  run_after(limit_, limit, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->limit_is_over();
  });
  ask();
}

void GpuMemory::limit_is_over() {
  const auto seconds = static_cast<double>(waited_.count()) / 1000.0;
  if (is_heard_) {
    return finish(concat(describe(last_.dying), ", dead processes of the last round, ", seconds,
                         " s after their end"));
  }
  start_again();
  finish(concat("NVML did not answer within ", seconds,
                " s: whether the GPUs' memory is free is not known"));
}

// Kills the helper that hangs, which may take time to die. The new one's answer serves the next
// wait.
void GpuMemory::start_again() {
  is_silent_ = true;
  helper_ = GpuHelper::start(io_, program_);
  ask();
}

void GpuMemory::give_up() { finish(""); }

void GpuMemory::finish(std::string note) {
  limit_.cancel();
  next_.cancel();
  if (const Done done = std::exchange(done_, nullptr)) done(std::move(note));
}

// Asks who holds memory. If an answer is already due, this waits for it. Without NVML, or if it
// broke, nothing is known and nothing is waited for.
void GpuMemory::ask() {
  if (!helper_) return;
  helper_->ask(GpuRequest::kProcesses, [weak = weak_from_this(), wait = num_waits_](
                                           const std::optional<std::string>& lines) {
    const auto self = weak.lock();
    if (!self) return;
    if (!lines) return self->finish("");
    self->is_silent_ = false;
    // An answer to an earlier wait doesn't count: the round's processes may have lived at that
    // time.
    const bool is_late = wait != self->num_waits_ && self->before_;
    if (!is_late) return self->answered(*lines);
    if (self->done_) self->ask();
  });
}

void GpuMemory::answered(const std::string& lines) {
  std::vector<GpuProcess> now;
  std::string_view rest = lines;
  while (!rest.empty()) {
    if (const auto process = parse_gpu_process(take_until(rest, "\n"))) now.push_back(*process);
  }
  if (!before_) {
    // Processes younger than this one are the job's own: they started before the first list came.
    const auto ours = start_ticks(::getpid());
    std::erase_if(now, [&](const GpuProcess& process) {
      const auto begun = start_ticks(static_cast<pid_t>(process.pid));
      return begun && ours && *begun >= *ours;
    });
    before_ = std::move(now);
    if (done_) ask();  // the round was over before the first list came
    return;
  }
  if (!done_) return;
  is_heard_ = true;
  last_ = gpu_holders(*before_, now, is_alive);
  if (last_.dying.empty()) {
    return finish(last_.foreign.empty() ? ""
                                        : "memory of this node's GPUs is held by processes that "
                                          "are not the job's: " +
                                              describe(last_.foreign));
  }
  run_after(next_, kInterval, [weak = weak_from_this()] {
    if (const auto self = weak.lock(); self && self->done_) self->ask();
  });
}

}  // namespace ddprun::agent
