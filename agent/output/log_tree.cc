// SPDX-License-Identifier: Apache-2.0
#include "agent/output/log_tree.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <functional>
#include <optional>
#include <system_error>
#include <utility>

#include "agent/console.h"
#include "common/error.h"
#include "common/random_id.h"
#include "common/text.h"

namespace ddprun::agent {
namespace {

namespace fs = std::filesystem;

// Uses torchrun's alphabet for such names; the letters are drawn with a negligible bias.
std::string random_name() {
  constexpr std::string_view kAlphabet = "abcdefghijklmnopqrstuvwxyz0123456789_";
  const RandomBytes bytes = random_bytes();
  std::string name;
  for (std::size_t i = 0; i < 8; ++i) name += kAlphabet[bytes[i] % kAlphabet.size()];
  return name;
}

// Makes a file name that is no path, and short enough for what is appended to it.
std::string as_file_name(std::string text) {
  std::replace(text.begin(), text.end(), '/', '_');
  return text.substr(0, 200);
}

// Returns the absolute path, since a worker may change its directory.
std::string absolute(const std::string& path) {
  std::error_code error;
  const fs::path whole = fs::absolute(path, error);
  return error ? path : whole.string();
}

constexpr mode_t kUsualMode = S_IRWXU | S_IRWXG | S_IRWXO;  // the umask is taken off

// Makes the directory `name` in an open one, and opens it.
LogFolder make_folder(int parent, const std::string& name, const std::string& path, mode_t mode) {
  if (::mkdirat(parent, name.c_str(), mode) != 0) throw_system_error("mkdir " + path, errno);
  constexpr int kFlags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
  auto fd = std::make_shared<const UniqueFd>(::openat(parent, name.c_str(), kFlags));
  if (!*fd) throw_system_error("open " + path, errno);
  return {path, std::move(fd)};
}

// Whether the folder belongs to the user to whom this user's files belong there. A file server may
// have other user numbers.
bool is_ours(const LogFolder& folder, const std::string& parent) {
  struct stat info {};
  struct stat of_file {};
  if (::fstat(folder.fd->get(), &info) != 0) return false;
  if (info.st_uid == ::geteuid()) return true;
  std::string name = parent + "/.ddprun-XXXXXX";
  const UniqueFd file(::mkostemp(name.data(), O_CLOEXEC));
  if (file) ::unlink(name.c_str());
  return file && ::fstat(file.get(), &of_file) == 0 && info.st_uid == of_file.st_uid;
}

bool is_open_at(const LogFolder& folder) {
  struct stat open {};
  struct stat there {};
  return ::fstat(folder.fd->get(), &open) == 0 && ::lstat(folder.path.c_str(), &there) == 0 &&
         open.st_dev == there.st_dev && open.st_ino == there.st_ino;
}

const char* file_of(OutputStream stream) {
  return stream == OutputStream::kStdout ? "stdout.log" : "stderr.log";
}

// Makes and removes a small file. Returns the text of the first error; empty: there was none.
std::string try_file(const std::string& directory) {
  std::string name = directory + "/.ddprun-XXXXXX";
  const UniqueFd file(::mkostemp(name.data(), O_CLOEXEC));
  if (!file) return errno_text(errno);
  constexpr std::array<char, 4096> kZeros{};
  const ssize_t written = ::write(file.get(), kZeros.data(), kZeros.size());
  const int error = written < 0 ? errno : ENOSPC;
  ::unlink(name.c_str());
  return written == static_cast<ssize_t>(kZeros.size()) ? "" : errno_text(error);
}

}  // namespace

std::string LogTree::problem_with(const std::string& log_dir) {
  std::error_code error;
  if (fs::exists(log_dir, error) && !fs::is_directory(log_dir, error)) return "is no directory";
  fs::create_directories(log_dir, error);
  if (error) return "can't be made: " + errno_text(error.value());
  const std::string problem = try_file(log_dir);
  return problem.empty() ? "" : "can't be written to: " + problem;
}

std::string LogTree::foreseen_problem_with(const std::string& log_dir) {
  std::error_code error;
  if (fs::exists(log_dir, error) && !fs::is_directory(log_dir, error)) return "is no directory";
  const bool is_there = fs::is_directory(log_dir, error);
  fs::path nearest = absolute(log_dir);
  while (!fs::exists(nearest, error) && nearest.has_relative_path())
    nearest = nearest.parent_path();
  struct statfs space {};
  int number = 0;
  if (!fs::is_directory(nearest, error)) {
    number = ENOTDIR;
  } else if (::access(nearest.c_str(), W_OK | X_OK) != 0 ||
             ::statfs(nearest.c_str(), &space) != 0) {
    number = errno;
  } else if (space.f_type == PROC_SUPER_MAGIC) {
    number = ENOENT;  // the error that /proc itself gives
  } else if (is_there && space.f_blocks > 0 && space.f_bfree == 0) {
    number = ENOSPC;
  }
  if (number == 0) return {};
  return (is_there ? "can't be written to: " : "can't be made: ") + errno_text(number);
}

LogTree::LogTree(const std::string& log_dir, std::string run_id)
    : log_dir_(absolute(log_dir)), run_id_(std::move(run_id)) {}

std::string LogTree::run_directory(const std::string& log_dir, const std::string& run_id,
                                   const std::string& random) {
  return absolute(log_dir) + "/" + as_file_name(run_id) + "_" + random;
}

std::string LogTree::attempt_directory(const std::string& run_directory, int restart_count) {
  return run_directory + "/attempt_" + std::to_string(restart_count);
}

// Makes a new directory if the old one is no longer at its path. Whoever may write to the log
// directory may also move it away, and put another in its place.
const LogFolder& LogTree::begin_run() {
  if (run_.fd && is_open_at(run_)) return run_;
  std::error_code error;
  fs::create_directories(log_dir_, error);
  const std::string name = run_directory(log_dir_, run_id_, random_name());
  LogFolder made = make_folder(AT_FDCWD, name, name, S_IRWXU);
  if (!is_ours(made, log_dir_)) {  // another user exchanged it at once
    throw Error(ErrorCode::kSystem, concat(name, " is another user's directory"));
  }
  run_ = std::move(made);
  return run_;
}

LogFolder LogTree::begin_attempt(int restart_count, int num_workers) {
  const LogFolder& run = begin_run();
  const std::string path = attempt_directory(run.path, restart_count);
  const std::string name = run.name_of(path);
  std::error_code error;
  fs::remove_all(concat("/proc/self/fd/", run.fd->get(), "/", name), error);
  LogFolder attempt = make_folder(run.fd->get(), name, path, kUsualMode);
  for (int local_rank = 0; local_rank < num_workers; ++local_rank) {
    const std::string rank = std::to_string(local_rank);
    if (::mkdirat(attempt.fd->get(), rank.c_str(), kUsualMode) != 0) {
      throw_system_error(concat("mkdir ", path, "/", rank), errno);
    }
  }
  return attempt;
}

std::string LogTree::log_file(const std::string& attempt, int local_rank, OutputStream stream) {
  return attempt + "/" + std::to_string(local_rank) + "/" + file_of(stream);
}

std::string LogTree::error_file(const std::string& attempt, int local_rank) {
  return attempt + "/" + std::to_string(local_rank) + "/error.json";
}

std::string LogTree::run_directory_of(const std::string& log_file) {
  return fs::path(log_file).parent_path().parent_path().parent_path().string();
}

std::string LogTree::of_all_ranks(const std::string& file) {
  const fs::path path(file);
  std::string stem = path.stem().string();
  const std::size_t digits = stem.find_last_not_of("0123456789") + 1;
  if (digits == stem.size()) {
    return (path.parent_path().parent_path() / "*" / path.filename()).string();
  }
  stem.replace(digits, std::string::npos, "*");
  return (path.parent_path() / (stem + path.extension().string())).string();
}

std::string LogTree::filtered_file(const std::string& attempt, OutputStream stream) {
  return attempt + "/filtered_" + file_of(stream);
}

LogFolder begin_attempt(LogWriter& writer, const std::shared_ptr<LogTree>& tree, int restart_count,
                        int num_workers) {
  struct Outcome {
    LogFolder folder;
    std::optional<Error> error;
  };
  const std::function<Outcome()> begin = [tree, restart_count, num_workers]() -> Outcome {
    try {
      return {tree->begin_attempt(restart_count, num_workers), std::nullopt};
    } catch (const Error& error) {
      return {{}, error};
    }
  };
  std::optional<Outcome> outcome = writer.call(begin);
  if (!outcome) throw Error(ErrorCode::kSystem, "the log directory's file system doesn't answer");
  if (outcome->error) throw Error(*outcome->error);
  return std::move(outcome->folder);
}

RoundLogs::RoundLogs(Console& console, const OutputOptions& options, LogFolder attempt)
    : console_(console), options_(options), attempt_(std::move(attempt)) {
  const auto make = [this](OutputStream stream) -> std::unique_ptr<LogWriter::File> {
    if (options_.filters(stream).empty()) return nullptr;
    return console_.log_writer().open(LogTree::filtered_file(attempt_.path, stream),
                                      file_options());
  };
  filtered_stdout_ = make(OutputStream::kStdout);
  filtered_stderr_ = make(OutputStream::kStderr);
}

LogFileOptions RoundLogs::file_options() const {
  LogFileOptions options;
  options.folder = attempt_;
  options.max_bytes = options_.log_max_bytes;
  options.keep = options_.log_keep;
  return options;
}

std::string RoundLogs::path(int local_rank, OutputStream stream) const {
  return LogTree::log_file(attempt_.path, local_rank, stream);
}

std::unique_ptr<LogWriter::File> RoundLogs::copied(int local_rank, OutputStream stream) const {
  return console_.log_writer().open(path(local_rank, stream), file_options());
}

UniqueFd RoundLogs::direct(int local_rank, OutputStream stream) const {
  const std::function<RegularFile()> open = [path = path(local_rank, stream), folder = attempt_] {
    return open_log_file(path, folder);
  };
  std::optional<RegularFile> opened = console_.log_writer().call(open);
  if (!opened) return {};
  if (!opened->fd) console_.log_writer().lost(path(local_rank, stream), opened->problem, 0);
  return std::move(opened->fd);
}

LogWriter::File* RoundLogs::filtered(OutputStream stream) const {
  return stream == OutputStream::kStdout ? filtered_stdout_.get() : filtered_stderr_.get();
}

}  // namespace ddprun::agent
