// SPDX-License-Identifier: Apache-2.0
#include "agent/error_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <boost/json.hpp>
#include <cstdlib>
#include <memory>

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

ErrorFiles::ErrorFiles(const std::string& temporary_directory) {
  std::string name = temporary_directory + "/ddprun-XXXXXX";
  if (::mkdtemp(name.data())) directory_ = std::move(name);
}

ErrorFiles::~ErrorFiles() {
  if (directory_.empty() || ::rmdir(directory_.c_str()) == 0) return;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir(directory_.c_str()),
                                                   [](DIR* d) { return d ? ::closedir(d) : 0; });
  while (const dirent* entry = folder ? ::readdir(folder.get()) : nullptr) {
    if (entry->d_name[0] != '.') ::unlink((directory_ + "/" + entry->d_name).c_str());
  }
  ::rmdir(directory_.c_str());
}

std::string ErrorFiles::path(std::uint64_t round, int local_rank) const {
  if (directory_.empty()) return "";
  return directory_ + "/round_" + std::to_string(round) + "_local_rank_" +
         std::to_string(local_rank) + "_error.json";
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
