// SPDX-License-Identifier: Apache-2.0
#include "agent/gpu/gpu_memory.h"

#include <signal.h>
#include <unistd.h>

#include <boost/asio/post.hpp>
#include <cerrno>
#include <utility>

#include "common/log.h"
#include "common/process_facts.h"

namespace ddprun::agent {
namespace {

// NVML has no event for this; a list takes about a millisecond.
constexpr std::chrono::milliseconds kInterval{10};

bool is_alive(std::int64_t pid) {
  return ::kill(static_cast<pid_t>(pid), 0) == 0 || errno == EPERM;
}

}  // namespace

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
  limit_.expires_after(limit);
  limit_.async_wait([weak = weak_from_this()](const boost::system::error_code& error) {
    if (const auto self = weak.lock(); self && !error) self->limit_is_over();
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

// The one that hangs is killed, and may take its time. What the new one says is for the next wait.
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

// Where an answer is due already it is awaited. No NVML here, or it broke: nothing is known, and
// nothing waited for.
void GpuMemory::ask() {
  if (!helper_) return;
  helper_->ask(GpuRequest::kProcesses, [weak = weak_from_this(), wait = num_waits_](
                                           const std::optional<std::string>& lines) {
    const auto self = weak.lock();
    if (!self) return;
    if (!lines) return self->finish("");
    self->is_silent_ = false;
    // Of before this wait: the processes of the round may have lived.
    const bool is_late = wait != self->num_waits_ && self->before_;
    if (!is_late) return self->answered(*lines);
    if (self->done_) self->ask();
  });
}

void GpuMemory::answered(const std::string& lines) {
  std::vector<GpuProcess> now;
  std::string_view rest = lines;
  while (!rest.empty()) {
    const std::size_t end = rest.find('\n');
    if (const auto process = parse_gpu_process(rest.substr(0, end))) now.push_back(*process);
    rest.remove_prefix(end + 1);
  }
  if (!before_) {
    // Younger than we are: the job's own, which were faster than the first list.
    const auto ours = start_ticks(::getpid());
    std::erase_if(now, [&](const GpuProcess& process) {
      const auto begun = start_ticks(static_cast<pid_t>(process.pid));
      return begun && ours && *begun >= *ours;
    });
    before_ = std::move(now);
    if (done_) ask();  // a round that was over before its first list was there
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
  next_.expires_after(kInterval);
  next_.async_wait([weak = weak_from_this()](const boost::system::error_code& error) {
    if (const auto self = weak.lock(); self && !error && self->done_) self->ask();
  });
}

}  // namespace ddprun::agent
