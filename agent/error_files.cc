// SPDX-License-Identifier: Apache-2.0
#include "agent/error_files.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <boost/json.hpp>

#include "common/unique_fd.h"

namespace ddprun::agent {
namespace {

constexpr std::size_t kMaxFileBytes = std::size_t{1} << 20;

}  // namespace

std::string parse_error_file(std::string_view json) {
  boost::json::error_code error;
  const boost::json::value root = boost::json::parse({json.data(), json.size()}, error);
  if (error || !root.is_object()) return "";
  const boost::json::value* message = root.as_object().if_contains("message");
  // {"message": {"message": "Type: text", "extraInfo": …}}, or the text alone.
  if (message && message->is_object()) message = message->as_object().if_contains("message");
  return message && message->is_string() ? std::string(message->as_string()) : "";
}

ErrorFiles::~ErrorFiles() { remove_files(); }

std::string ErrorFiles::path(std::uint64_t round, int local_rank) const {
  if (prefix_.empty()) return "";
  return prefix_ + "-round" + std::to_string(round) + "-" + std::to_string(local_rank) +
         "-error.json";
}

void ErrorFiles::begin_round(std::uint64_t round, int num_workers) {
  remove_files();
  round_ = round;
  num_workers_ = num_workers;
}

void ErrorFiles::remove_files() const {
  if (prefix_.empty()) return;
  for (int local_rank = 0; local_rank < num_workers_; ++local_rank) {
    ::unlink(path(round_, local_rank).c_str());
  }
}

std::string ErrorFiles::message(std::uint64_t round, int local_rank) const {
  const UniqueFd fd(::open(path(round, local_rank).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  std::string text;
  std::array<char, 4096> buffer;
  while (fd && text.size() < kMaxFileBytes) {
    const ssize_t size = ::read(fd.get(), buffer.data(), buffer.size());
    if (size <= 0) break;
    text.append(buffer.data(), static_cast<std::size_t>(size));
  }
  return parse_error_file(text);
}

}  // namespace ddprun::agent
