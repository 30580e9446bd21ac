// SPDX-License-Identifier: Apache-2.0
#include "agent/standing/gang_output.h"

#include <sys/inotify.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>
#include <vector>

#include "common/byte_text.h"
#include "common/error.h"
#include "common/log.h"
#include "common/regular_file.h"

namespace ddprun::launcher {

namespace asio = boost::asio;
using gangs::OutputAnswer;
using gangs::OutputRequest;

namespace {

constexpr char kOutName[] = "/stdout", kErrName[] = "/stderr";

UniqueFd append_to(const std::string& path) {
  RegularFile file = open_regular_file_to_append(path, 0600);
  if (file.fd) return std::move(file.fd);
  throw Error(ErrorCode::kSystem, concat("can't write to ", path, ": ", file.problem));
}

// Reads at most `most` bytes from `offset` on. `trouble` is set if that fails; otherwise it stays.
std::string read_from(const std::string& path, std::uint64_t offset, std::size_t most,
                      std::string& trouble) {
  const RegularFile file = open_regular_file(path);
  if (!file.fd) {
    trouble = concat("can't read ", path, ": ", file.problem);
    return {};
  }
  std::string bytes(most, '\0');
  const ssize_t size = ::pread(file.fd.get(), bytes.data(), most, static_cast<off_t>(offset));
  if (size < 0) trouble = concat("can't read ", path, ": ", errno_text(errno));
  bytes.resize(static_cast<std::size_t>(std::max<ssize_t>(size, 0)));
  return bytes;
}

// Makes and tests the folder at the start: without it each gang that came here would fail.
void require_folder(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  std::string why = error ? concat("can't make ", path, ": ", error.message()) : "";
  if (why.empty() && ::access(path.c_str(), W_OK | X_OK) != 0) {
    why = concat("can't write to ", path, ": ", errno_text(errno));
  }
  if (!why.empty()) {
    throw Error(ErrorCode::kInvalidArgument, why + " (--log-dir, or $STATE_DIRECTORY)");
  }
}

}  // namespace

GangOutput::GangOutput(asio::io_context& io, std::string directory, std::string node,
                       std::function<void(const OutputAnswer&)> answer)
    : directory_(std::move(directory)),
      node_(std::move(node)),
      answer_(std::move(answer)),
      io_(io),
      changes_(io) {
  require_folder(directory_ + "/gangs");
  const int fd = ::inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
  if (fd < 0) throw_system_error("inotify_init1", errno);
  changes_.assign(fd);
  await_changes();
}

GangOutput::~GangOutput() = default;

std::string GangOutput::folder(const std::string& gang) const {
  return concat(directory_, "/gangs/", gang, "/", node_);
}

GangOutput::Files GangOutput::open(const std::string& gang) const {
  const std::string path = folder(gang);
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) throw Error(ErrorCode::kSystem, concat("can't make ", path, ": ", error.message()));
  return {append_to(path + kOutName), append_to(path + kErrName)};
}

void GangOutput::remove_older_than(std::chrono::milliseconds time,
                                   const std::function<bool(const std::string&)>& runs) const {
  namespace fs = std::filesystem;
  const fs::file_time_type oldest = fs::file_time_type::clock::now() - time;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory_ + "/gangs", error)) {
    const std::string gang = entry.path().filename().string();
    const fs::path mine = entry.path() / node_;  // another node may have its own folder beside it
    if (runs(gang) || !fs::is_directory(mine, error)) continue;
    const auto is_new = [&](const char* name) {
      const auto written = fs::last_write_time(mine.string() + name, error);
      return !error && written > oldest;
    };
    if (is_new(kOutName) || is_new(kErrName)) continue;
    fs::remove_all(mine, error);
    if (error) log_warning("can't remove ", mine.string(), ": ", error.message());
    fs::remove(entry.path(), error);  // succeeds only if it is empty
  }
}

std::string GangOutput::trouble(const std::string& gang) const {
  std::uintmax_t kept = 0;
  for (const char* name : {kOutName, kErrName}) {
    std::error_code error;
    const std::uintmax_t size = std::filesystem::file_size(folder(gang) + name, error);
    if (error) return concat("can't read ", folder(gang), name, ": ", error.message());
    kept += size;
  }
  struct statvfs disk {};
  const bool is_full = ::statvfs(directory_.c_str(), &disk) == 0 && disk.f_bavail == 0;
  if (!is_full) return {};
  return concat("no space is left on the disk of ", directory_, "; ", kept, " bytes are kept");
}

OutputAnswer GangOutput::read_now(const OutputRequest& request) const {
  const auto most =
      static_cast<std::size_t>(std::min<std::uint64_t>(request.most, gangs::kMaxOutputBytes));
  const std::string path = folder(request.gang);
  OutputAnswer answer;
  answer.request = request.request;
  const std::string out = read_from(path + kOutName, request.out, most, answer.reason);
  const std::string err = read_from(path + kErrName, request.err, most, answer.reason);
  answer.out = to_base64(out);
  answer.err = to_base64(err);
  answer.out_next = request.out + out.size();
  answer.err_next = request.err + err.size();
  return answer;
}

bool GangOutput::read(const OutputRequest& request, bool runs) {
  if (!gangs::is_gang_name(request.gang)) return false;
  // The watch begins before the read, so that bytes written in between are noticed.
  const bool may_wait = runs && request.wait_ms > 0 && waiting_.size() < kMaxWaiting;
  // There is no watch if the directory was removed, or the user has none left.
  const int watch = may_wait ? ::inotify_add_watch(changes_.native_handle(),
                                                   folder(request.gang).c_str(), IN_MODIFY)
                             : -1;
  const OutputAnswer answer = read_now(request);
  const bool has_some = !answer.out.empty() || !answer.err.empty();
  if (watch >= 0) watched_[watch] = request.gang;
  if (!may_wait || has_some) {
    end_watch(watch);
    answer_(answer);
    return !runs && !has_some && answer.reason.empty();
  }
  const std::uint64_t number = next_number_++;
  Waiting& waiting = waiting_[number];
  waiting.request = request;
  waiting.watch = watch;
  const auto limit = std::clamp<std::int64_t>(request.wait_ms, 0, gangs::kMaxOutputWaitMs);
  waiting.timer = std::make_unique<asio::steady_timer>(io_, std::chrono::milliseconds(limit));
  waiting.timer->async_wait(
      [this, number, weak = std::weak_ptr<int>(alive_)](boost::system::error_code error) {
        if (error || weak.expired()) return;
        const auto found = waiting_.find(number);
        if (found != waiting_.end()) finish(number, read_now(found->second.request));
      });
  return false;
}

void GangOutput::await_changes() {
  changes_.async_read_some(
      asio::buffer(buffer_),
      [this, weak = std::weak_ptr<int>(alive_)](boost::system::error_code error, std::size_t size) {
        if (error || weak.expired()) return;
        std::vector<std::string> changed;
        for (std::size_t at = 0; at + sizeof(inotify_event) <= size;) {
          inotify_event event;
          std::memcpy(&event, buffer_.data() + at, sizeof event);
          at += sizeof event + event.len;
          const auto found = watched_.find(event.wd);
          if (found != watched_.end()) changed.push_back(found->second);
        }
        std::ranges::sort(changed);
        changed.erase(std::unique(changed.begin(), changed.end()), changed.end());
        for (const std::string& gang : changed) look(gang);
        await_changes();
      });
}

void GangOutput::look(const std::string& gang) {
  std::vector<std::uint64_t> theirs;
  for (const auto& [number, waiting] : waiting_) {
    if (waiting.request.gang == gang) theirs.push_back(number);
  }
  for (const std::uint64_t number : theirs) {
    const OutputAnswer answer = read_now(waiting_.at(number).request);
    if (!answer.out.empty() || !answer.err.empty()) finish(number, answer);
  }
}

void GangOutput::ended(const std::string& gang) {
  std::vector<std::uint64_t> theirs;
  for (const auto& [number, waiting] : waiting_) {
    if (waiting.request.gang == gang) theirs.push_back(number);
  }
  for (const std::uint64_t number : theirs) {
    finish(number, read_now(waiting_.at(number).request));
  }
}

void GangOutput::finish(std::uint64_t number, const OutputAnswer& answer) {
  const auto done = waiting_.extract(number);
  end_watch(done.mapped().watch);
  answer_(answer);
}

// Ends the watch, unless another request still waits for it.
void GangOutput::end_watch(int watch) {
  const bool is_used = std::ranges::any_of(
      waiting_, [watch](const auto& each) { return each.second.watch == watch; });
  if (watch < 0 || is_used) return;
  ::inotify_rm_watch(changes_.native_handle(), watch);
  watched_.erase(watch);
}

}  // namespace ddprun::launcher
