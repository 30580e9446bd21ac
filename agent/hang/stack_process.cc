// SPDX-License-Identifier: Apache-2.0
#include "agent/hang/stack_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <charconv>
#include <utility>

#include "common/error.h"
#include "common/socket.h"
#include "rendezvous/asio/waits.h"

namespace ddprun::agent {
namespace {

constexpr std::size_t kMaxOutput = 1 << 20;
constexpr int kNotFound = 127;

}  // namespace

ProcessStacks parse_stacks(std::string_view text) {
  ProcessStacks stacks;
  std::map<pid_t, std::vector<std::string>> native;
  pid_t pid = 0;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    if (end == std::string_view::npos) break;  // cut off
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end + 1);
    const std::size_t space = line.find(' ');
    if (space == std::string_view::npos) continue;
    const std::string_view kind = line.substr(0, space), rest = line.substr(space + 1);
    if (kind == "pid") {
      pid = 0;
      std::from_chars(rest.data(), rest.data() + rest.size(), pid);
    } else if (kind == "native") {
      native[pid].emplace_back(rest);
    } else if (kind == "python") {
      stacks[pid].frames.emplace_back(rest);
    } else if (kind == "note" && stacks[pid].note.empty()) {
      stacks[pid].note = rest;
    }
  }
  for (auto& [of, frames] : native) {
    auto& all = stacks[of].frames;
    std::move(frames.begin(), frames.end(), std::back_inserter(all));
  }
  return stacks;
}

std::shared_ptr<StackProcess> StackProcess::start(boost::asio::io_context& io,
                                                  const std::string& program) {
  std::shared_ptr<StackProcess> process(new StackProcess(io));
  process->spawn(program);
  return process;
}

StackProcess::StackProcess(boost::asio::io_context& io) : io_(io), answer_(io), limit_(io) {}

void StackProcess::spawn(const std::string& program) {
  try {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
      throw_system_error("socketpair", errno);
    }
    requests_.reset(ends[0]);
    const UniqueFd theirs(ends[1]);
    child_ = WatchedChild::start_helper(io_, program, theirs.get(), ChildCommand::kNothing,
                                        [weak = weak_from_this()](int wait_status) {
                                          if (const auto self = weak.lock())
                                            self->ended(wait_status);
                                        });
  } catch (const Error& error) {
    problem_ = error.what();
  }
}

void StackProcess::ended(int wait_status) {
  const bool missing = WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == kNotFound;
  problem_ = missing ? "no stack: ddprun-stacks can't run" : "no stack: ddprun-stacks has ended";
  requests_.reset();
  if (is_busy() && text_.empty()) finish();
}

void StackProcess::take(const std::vector<pid_t>& pids, std::chrono::milliseconds limit,
                        Done done) {
  done_ = std::move(done);
  text_.clear();
  int ends[2] = {-1, -1};
  if (problem_.empty() && ::pipe2(ends, O_CLOEXEC) == 0) {
    answer_.assign(ends[0]);
    answer_.non_blocking(true);
    const UniqueFd theirs(ends[1]);
    const std::string_view bytes(reinterpret_cast<const char*>(pids.data()),
                                 pids.size() * sizeof(pid_t));
    if (send_with_fd(requests_.get(), bytes, theirs.get()) > 0) {
      run_after(limit_, limit, [weak = weak_from_this()] {
        const auto self = weak.lock();
        if (self && self->is_busy()) self->finish();
      });
      return read_answer();
    }
  }
  if (problem_.empty()) problem_ = "no stack: ddprun-stacks can't be reached";
  boost::asio::post(limit_.get_executor(), [self = shared_from_this()] {
    if (self->is_busy()) self->finish();
  });
}

void StackProcess::read_answer() {
  when_readable(answer_, [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (!self || !self->is_busy()) return;
    std::array<char, 16384> buffer;
    const ssize_t size = ::read(self->answer_.native_handle(), buffer.data(), buffer.size());
    if (size > 0) self->text_.append(buffer.data(), static_cast<std::size_t>(size));
    const bool goes_on = size > 0 || (size < 0 && errno == EAGAIN);
    if (goes_on && self->text_.size() < kMaxOutput) return self->read_answer();
    // Nothing at all: it is about to be seen that it has ended.
    if (!self->text_.empty()) self->finish();
  });
}

void StackProcess::finish() {
  limit_.cancel();
  boost::system::error_code ignored;
  answer_.close(ignored);  // who still writes to it ends
  const Done done = std::exchange(done_, nullptr);
  done(parse_stacks(text_), text_.empty() ? problem_ : "");
}

void StackProcess::abandon() {
  done_ = nullptr;
  limit_.cancel();
  boost::system::error_code ignored;
  answer_.close(ignored);
  requests_.reset();
  if (child_) child_->signal(SIGKILL);
}

}  // namespace ddprun::agent
