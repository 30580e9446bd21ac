// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/agent_channel.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "common/progress_page.h"
#include "common/socket.h"
#include "common/throw_error.h"
#include "common/utf8.h"

namespace ddprun {
namespace {

constexpr std::size_t kMaxReasonBytes = 1024;
constexpr std::chrono::seconds kPlaceTimeout{10};

UniqueFd connect_to_path(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    throw_error(ErrorCode::kUnavailable, "the path of the agent's socket is too long: ", path);
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) throw_system_error("socket", errno);
  // A Unix socket connects at once. EAGAIN: too many workers wait to be accepted.
  if (::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    throw_error(ErrorCode::kUnavailable, "the agent's socket ", path, ": ", errno_text(errno));
  }
  return fd;
}

// Returns some bytes of the answer; a descriptor that comes with them goes to `page`.
std::string receive_some(int socket, UniqueFd* page) {
  std::array<char, kMaxAgentLineBytes> text;
  FdMessage message = receive_with_fd(socket, text.data(), text.size());
  if (message.size < 0 && (errno == EAGAIN || errno == EINTR)) return "";
  if (message.size <= 0) throw Error(ErrorCode::kUnavailable, "the agent ended the connection");
  if (message.fd) *page = std::move(message.fd);
  return {text.data(), static_cast<std::size_t>(message.size)};
}

// Returns the number of a request; 0: it has none.
std::uint64_t number_in(const std::string& line) {
  constexpr std::string_view kKey = R"("number":)";
  const std::size_t at = line.find(kKey);
  return at == std::string::npos ? 0 : std::strtoull(line.c_str() + at + kKey.size(), nullptr, 10);
}

}  // namespace

AgentChannel::AgentChannel(const std::string& path, std::uint64_t round, int local_rank,
                           Deadline deadline)
    : AgentChannel(path, round, local_rank) {
  if (!await_welcome(deadline)) throw Error(ErrorCode::kTimeout, "the agent does not answer");
}

AgentChannel::AgentChannel(const std::string& path, std::uint64_t round, int local_rank)
    : socket_(connect_to_path(path)) {
  send_line(concat(R"({"type":"hello","version":)", kProgressVersion, R"(,"round":)", round,
                   R"(,"local_rank":)", local_rank, "}"));
}

bool AgentChannel::await_welcome(Deadline deadline) {
  std::string answer;
  try {
    answer = receive_line(deadline);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kTimeout) return false;
    throw;
  }
  if (answer.find(R"("type":"welcome")") == std::string::npos || !page_) {
    throw_error(ErrorCode::kUnavailable, "the agent refused this worker: ", one_line(answer));
  }
  return true;
}

std::optional<std::string> AgentChannel::take_line() {
  const std::size_t end = received_.find('\n');
  if (end == std::string::npos) return std::nullopt;
  std::string line = received_.substr(0, end);
  received_.erase(0, end + 1);
  return line;
}

std::string AgentChannel::receive_line(Deadline deadline) {
  std::optional<std::string> line;
  while (!(line = take_line())) {
    if (received_.size() > kMaxAgentLineBytes || !wait_ready(socket_.get(), POLLIN, deadline)) {
      throw Error(ErrorCode::kTimeout, "the agent does not answer");
    }
    received_ += receive_some(socket_.get(), &page_);
  }
  return *line;
}

std::optional<std::uint64_t> AgentChannel::await_request(int stop) {
  for (;;) {
    while (const auto line = take_line()) {
      if (line->find(R"("type":"dump")") != std::string::npos) return number_in(*line);
    }
    if (received_.size() > kMaxAgentLineBytes) return std::nullopt;
    std::array<pollfd, 2> polls{{{socket_.get(), POLLIN, 0}, {stop, POLLIN, 0}}};
    constexpr int kForEver = -1;  // the session ends the wait
    if (::poll(polls.data(), polls.size(), kForEver) < 0 && errno != EINTR) return std::nullopt;
    if (polls[1].revents != 0) return std::nullopt;
    if (polls[0].revents == 0) continue;
    try {
      UniqueFd nothing;
      received_ += receive_some(polls[0].fd, &nothing);
    } catch (const Error&) {
      return std::nullopt;
    }
  }
}

std::vector<std::string> AgentChannel::receive_place(Deadline whole_deadline) {
  const std::string line = receive_line(whole_deadline);
  constexpr std::string_view kBegin = R"({"type":"assign","bytes":)";
  if (!line.starts_with(kBegin)) {
    throw_error(ErrorCode::kUnavailable, "the agent gave no place: ", one_line(line));
  }
  const std::size_t size = std::strtoul(line.c_str() + kBegin.size(), nullptr, 10);
  const Deadline deadline = Deadline::after(kPlaceTimeout);  // the place follows at once
  while (received_.size() < size) {
    if (!wait_ready(socket_.get(), POLLIN, deadline)) {
      throw Error(ErrorCode::kTimeout, "the agent's place is incomplete");
    }
    received_ += receive_some(socket_.get(), &page_);
  }
  std::vector<std::string> variables;
  for (std::size_t begin = 0; begin < size;) {
    variables.emplace_back(received_.c_str() + begin);
    begin += variables.back().size() + 1;
  }
  received_.clear();
  return variables;
}

bool AgentChannel::exclude_node(std::string_view reason) {
  return send_line(R"({"type":"exclude_node","reason":")" + json_text(reason, kMaxReasonBytes) +
                   "\"}");
}

bool AgentChannel::stop_job(std::string_view reason, int exit_code) {
  return send_line(R"({"type":"stop_job","reason":")" + json_text(reason, kMaxReasonBytes) +
                   concat(R"(","exit_code":)", exit_code, "}"));
}

bool AgentChannel::operation_failed(const OperationFailure& failure, std::string_view file) {
  return send_line(concat(R"({"type":"operation_failed","code":")", failure.code,
                          R"(","operation":")", text_of(failure.facts), R"(","size":)",
                          failure.size, R"(,"waited_ms":)", failure.waited.count(),
                          R"(,"missing":[)", listed(failure.missing, ","), R"(],"message":")",
                          json_text(failure.message, kMaxReasonBytes), R"(","file":")",
                          json_text(file, kMaxReasonBytes), "\"}"));
}

bool AgentChannel::recorded(std::string_view file, std::uint64_t request) {
  const std::string number = request == 0 ? "" : concat(R"(,"number":)", request);
  return send_line(R"({"type":"recorded","file":")" + json_text(file, kMaxReasonBytes) + "\"" +
                   number + "}");
}

bool AgentChannel::send_line(const std::string& line) {
  const std::lock_guard lock(mutex_);
  if (is_broken_) return false;
  const std::string whole = line + "\n";
  const ssize_t sent = ::send(socket_.get(), whole.data(), whole.size(), MSG_NOSIGNAL);
  if (sent == static_cast<ssize_t>(whole.size())) return true;
  if (sent >= 0) {  // half a line was sent: a further line would not be read as one
    is_broken_ = true;
    ::shutdown(socket_.get(), SHUT_RDWR);
  }
  return false;
}

}  // namespace ddprun
