// SPDX-License-Identifier: Apache-2.0
#include "agent/error_files.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <functional>
#include <iterator>
#include <utility>

#include "agent/output/log_tree.h"
#include "agent/output/log_writer.h"
#include "common/json.h"
#include "common/unique_fd.h"
#include "rendezvous/membership/messages.h"

namespace ddprun::agent {
namespace {

constexpr std::size_t kMaxFileBytes = std::size_t{1} << 20;

constexpr std::ptrdiff_t kMaxTracebackLines = 24;

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    lines.emplace_back(text.substr(0, text.find('\n')));
    text.remove_prefix(std::min(lines.back().size() + 1, text.size()));
  }
  // Where it was called from is worth less than where it broke.
  if (const auto surplus = std::ssize(lines) - kMaxTracebackLines; surplus > 0) {
    lines.erase(lines.begin() + 1, lines.begin() + 1 + surplus);
  }
  return lines;
}

void erase_if_empty(boost::json::object& object, const char* name) {
  const boost::json::value* value = object.if_contains(name);
  const bool is_empty = value && value->is_object() && value->as_object().empty();
  if (is_empty) object.erase(name);
}

// Those that everybody has are told apart from them.
std::string further_fields(boost::json::object root) {
  boost::json::value* message = root.if_contains("message");
  if (message && message->is_object()) {
    boost::json::object& object = message->as_object();
    boost::json::value* extra = object.if_contains("extraInfo");
    if (extra && extra->is_object()) {
      extra->as_object().erase("py_callstack");
      extra->as_object().erase("timestamp");
      erase_if_empty(object, "extraInfo");
    }
    object.erase("message");
    object.erase("errorCode");
    erase_if_empty(root, "message");
  } else {
    root.erase("message");
  }
  if (root.empty()) return {};
  std::string text = boost::json::serialize(root);
  return text.size() <= membership::kMaxErrorFieldsBytes ? text : "";
}

}  // namespace

WorkerError parse_error_file(std::string_view json) {
  WorkerError result;
  auto root = parse_object(json);
  if (!root) return result;
  const boost::json::value* message = root->if_contains("message");
  // {"message": {"message": "Type: text", "extraInfo": {"py_callstack": …}}}, or the text alone.
  if (message && message->is_object()) {
    const boost::json::object& object = message->as_object();
    message = object.if_contains("message");
    const boost::json::value* extra = object.if_contains("extraInfo");
    const boost::json::value* stack =
        extra && extra->is_object() ? extra->as_object().if_contains("py_callstack") : nullptr;
    if (stack && stack->is_string()) result.traceback = lines_of(stack->as_string());
  }
  if (message && message->is_string()) result.message = message->as_string();
  result.fields = further_fields(std::move(*root));
  return result;
}

std::string worker_error_file(const std::string& log_directory, const std::string& socket_directory,
                              int local_rank) {
  if (!log_directory.empty()) return LogTree::error_file(log_directory, local_rank);
  if (socket_directory.empty()) return {};
  return socket_directory + "/" + std::to_string(local_rank) + "-error.json";
}

WorkerError read_error_file(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  std::string text;
  std::array<char, 4096> buffer;
  while (fd && text.size() < kMaxFileBytes) {
    const ssize_t size = ::read(fd.get(), buffer.data(), buffer.size());
    if (size <= 0) break;
    text.append(buffer.data(), static_cast<std::size_t>(size));
  }
  return parse_error_file(text);
}

void ErrorFiles::begin_round(std::uint64_t round, const std::string& log_directory,
                             const std::string& directory) {
  round_ = round;
  paths_.clear();
  for (int local_rank = 0; local_rank < num_workers_; ++local_rank) {
    paths_.push_back(worker_error_file(log_directory, directory, local_rank));
  }
}

std::string ErrorFiles::path(std::uint64_t round, int local_rank) const {
  const auto index = static_cast<std::size_t>(local_rank);
  return round == round_ && index < paths_.size() ? paths_[index] : "";
}

WorkerError ErrorFiles::read(std::uint64_t round, int local_rank) const {
  const std::function<WorkerError()> read = [path = path(round, local_rank)] {
    return read_error_file(path);
  };
  return writer_ ? writer_->call(read).value_or(WorkerError{}) : read();
}

}  // namespace ddprun::agent
