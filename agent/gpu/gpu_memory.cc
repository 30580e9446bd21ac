// SPDX-License-Identifier: Apache-2.0
#include "agent/gpu/gpu_memory.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <utility>

#include "common/env_names.h"
#include "common/error.h"
#include "common/log.h"
#include "common/process_facts.h"
#include "common/unique_fd.h"

namespace ddprun::agent {
namespace {

// NVML has no event for this; a list takes about a millisecond.
constexpr std::chrono::milliseconds kInterval{10};
constexpr std::size_t kMaxAnswerBytes = 1 << 20;

bool has_driver() {
  const char* chosen = std::getenv(env::kNvmlLibrary);
  return (chosen != nullptr && *chosen != '\0') || ::access("/dev/nvidiactl", F_OK) == 0;
}

bool is_alive(std::int64_t pid) {
  return ::kill(static_cast<pid_t>(pid), 0) == 0 || errno == EPERM;
}

pid_t start(const std::string& program, int input, int output) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, input, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID);  // not for the terminal's Ctrl-C
  std::string name = "ddprun-gpus";
  char* argv[] = {name.data(), nullptr};
  pid_t pid = -1;
  const int error = ::posix_spawn(&pid, program.c_str(), &actions, &attributes, argv, environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (error != 0) log_warning("can't start ", program, ": ", errno_text(error));
  return error == 0 ? pid : -1;
}

}  // namespace

std::shared_ptr<GpuMemory> GpuMemory::open(boost::asio::io_context& io,
                                           const std::string& program) {
  int requests[2], answers[2];
  if (!has_driver() || ::pipe2(requests, O_CLOEXEC) != 0) return nullptr;
  UniqueFd request_read(requests[0]), request_write(requests[1]);
  if (::pipe2(answers, O_CLOEXEC | O_NONBLOCK) != 0) return nullptr;
  UniqueFd answer_read(answers[0]), answer_write(answers[1]);
  ::fcntl(answer_write.get(), F_SETFL, 0);
  const pid_t pid = start(program, request_read.get(), answer_write.get());
  if (pid < 0) return nullptr;
  std::shared_ptr<GpuMemory> memory(
      new GpuMemory(io, pid, request_write.release(), answer_read.release()));
  memory->ask();
  return memory;
}

GpuMemory::GpuMemory(boost::asio::io_context& io, pid_t pid, int request_fd, int answer_fd)
    : helper_(std::in_place, pid),
      requests_(io, request_fd),
      answers_(io, answer_fd),
      limit_(io),
      next_(io) {}

// One that is stuck in the driver can't be reaped; it ends when the driver lets it.
GpuMemory::~GpuMemory() { reap(); }

void GpuMemory::reap() {
  if (!helper_) return;
  ::kill(helper_->pid(), SIGKILL);
  if (::waitpid(helper_->pid(), nullptr, WNOHANG) != 0) helper_.reset();
}

void GpuMemory::when_freed(std::chrono::milliseconds limit, Done done) {
  done_ = std::move(done);
  waited_ = limit;
  limit_.expires_after(limit);
  limit_.async_wait([weak = weak_from_this()](const boost::system::error_code& error) {
    const auto self = weak.lock();
    if (error || !self) return;
    const auto seconds = static_cast<double>(self->waited_.count()) / 1000.0;
    self->finish(self->last_.dying.empty()
                     ? concat("NVML did not answer within ", seconds,
                              " s: whether the GPUs' memory is free is not known")
                     : concat(describe(self->last_.dying), ", dead processes of the last round, ",
                              seconds, " s after their end"));
  });
  last_ = {};
  ask();
}

void GpuMemory::give_up() { finish(""); }

void GpuMemory::finish(std::string note) {
  limit_.cancel();
  next_.cancel();
  if (const Done done = std::exchange(done_, nullptr)) done(std::move(note));
}

void GpuMemory::ask() {
  if (asked_ || !answers_.is_open()) {  // an answer is due, or none will ever come
    if (!answers_.is_open()) lost();
    return;
  }
  asked_ = true;
  constexpr char kRequest = '\n';
  if (::write(requests_.native_handle(), &kRequest, 1) != 1) return lost();
  read_answer();
}

void GpuMemory::read_answer() {
  answers_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                      [weak = weak_from_this()](const boost::system::error_code& error) {
                        const auto self = weak.lock();
                        if (error || !self) return;
                        std::array<char, 16384> buffer;
                        const ssize_t size =
                            ::read(self->answers_.native_handle(), buffer.data(), buffer.size());
                        if (size > 0) {
                          self->text_.append(buffer.data(), static_cast<std::size_t>(size));
                        } else if (size == 0 || errno != EAGAIN) {
                          return self->lost();
                        }
                        if (self->text_.size() > kMaxAnswerBytes) return self->lost();
                        const bool whole = self->text_ == ".\n" || self->text_.ends_with("\n.\n");
                        whole ? self->answered() : self->read_answer();
                      });
}

// No NVML here, or it broke: nothing is known from now on, and nothing waited for.
void GpuMemory::lost() {
  boost::system::error_code ignored;
  answers_.close(ignored);
  reap();
  finish("");
}

void GpuMemory::answered() {
  asked_ = false;
  std::vector<GpuProcess> now;
  std::string_view rest = text_;
  while (!rest.empty()) {
    const std::size_t end = rest.find('\n');
    if (const auto process = parse_gpu_process(rest.substr(0, end))) now.push_back(*process);
    rest.remove_prefix(end + 1);
  }
  text_.clear();
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
