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
  pid_t pid = 0;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    if (end == std::string_view::npos) break;  // the line is cut off
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end + 1);
    const std::size_t space = line.find(' ');
    if (space == std::string_view::npos) continue;
    const std::string_view kind = line.substr(0, space), rest = line.substr(space + 1);
    if (kind == "pid") {
      pid = 0;
      std::from_chars(rest.data(), rest.data() + rest.size(), pid);
    } else if (kind == "native") {
      stacks[pid].native.emplace_back(rest);
    } else if (kind == "python") {
      stacks[pid].python.emplace_back(rest);
    } else if (kind == "note" && stacks[pid].note.empty()) {
      stacks[pid].note = rest;
    } else if (kind == "debugger") {
      stacks[pid].has_debugger = true;
    }
  }
  return stacks;
}

std::shared_ptr<StackProcess> StackProcess::start(boost::asio::io_context& io,
                                                  const std::string& program) {
  std::shared_ptr<StackProcess> process(new StackProcess(io));
  process->spawn(program);
  return process;
}

StackProcess::StackProcess(boost::asio::io_context& io) : io_(io) {}

void StackProcess::spawn(const std::string& program) {
  try {
    auto [ours, theirs] = make_socket_pair(SOCK_SEQPACKET);
    requests_ = std::move(ours);
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
  std::vector<std::uint64_t> mute;
  for (const auto& [number, taking] : takes_) {
    if (taking.text.empty()) mute.push_back(number);
  }
  for (const std::uint64_t number : mute) finish(number);
}

void StackProcess::take(const std::vector<pid_t>& pids, std::chrono::milliseconds limit, Turn turn,
                        Done done) {
  const std::uint64_t number = next_number_++;
  Taking& taking = takes_.try_emplace(number, io_).first->second;
  taking.pids = pids;
  taking.done = std::move(done);
  run_after(taking.limit, limit, [self = shared_from_this(), number] { self->finish(number); });
  if (turn == Turn::kAtOnce) return begin(number);
  waiting_.push_back(number);
  begin_waiting();
}

void StackProcess::begin_waiting() {
  while (!waiting_.empty() && num_begun_ < kMostAtOnce) {
    const std::uint64_t number = waiting_.front();
    waiting_.pop_front();
    if (takes_.contains(number)) begin(number);
  }
}

void StackProcess::begin(std::uint64_t number) {
  Taking& taking = takes_.at(number);
  taking.is_begun = true;
  ++num_begun_;
  int ends[2] = {-1, -1};
  if (problem_.empty() && ::pipe2(ends, O_CLOEXEC) == 0) {
    taking.answer.assign(ends[0]);
    taking.answer.non_blocking(true);
    const UniqueFd theirs(ends[1]);
    const std::string_view bytes(reinterpret_cast<const char*>(taking.pids.data()),
                                 taking.pids.size() * sizeof(pid_t));
    if (send_with_fd(requests_.get(), bytes, theirs.get()) > 0) return read_answer(number);
  }
  if (problem_.empty()) problem_ = "no stack: ddprun-stacks can't be reached";
  boost::asio::post(io_, [self = shared_from_this(), number] { self->finish(number); });
}

void StackProcess::read_answer(std::uint64_t number) {
  when_readable(takes_.at(number).answer, [self = shared_from_this(), number] {
    const auto found = self->takes_.find(number);
    if (found == self->takes_.end()) return;
    Taking& taking = found->second;
    std::array<char, 16384> buffer;
    const ssize_t size = ::read(taking.answer.native_handle(), buffer.data(), buffer.size());
    if (size > 0) taking.text.append(buffer.data(), static_cast<std::size_t>(size));
    const bool goes_on = size > 0 || (size < 0 && errno == EAGAIN);
    if (goes_on && taking.text.size() < kMaxOutput) return self->read_answer(number);
    // Without any text it has ended, and that is about to be seen.
    if (!taking.text.empty()) self->finish(number);
  });
}

// Ends one request. A child that still writes to its pipe gets an error and ends.
void StackProcess::finish(std::uint64_t number) {
  const auto taken = takes_.extract(number);
  if (taken.empty()) return;
  const Taking& taking = taken.mapped();
  if (taking.is_begun) --num_begun_;
  begin_waiting();
  taking.done(parse_stacks(taking.text), taking.text.empty() ? problem_ : "");
}

void StackProcess::abandon() {
  takes_.clear();
  waiting_.clear();
  requests_.reset();
  if (child_) child_->signal(SIGKILL);
}

}  // namespace ddprun::agent
