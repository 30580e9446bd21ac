// SPDX-License-Identifier: Apache-2.0
#include "examples/train/checkpoint_directory.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "common/error.h"
#include "common/log.h"
#include "common/unique_fd.h"

namespace ddprun::train {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step-", kSuffix = ".safetensors", kTemporary = ".tmp-";
constexpr std::size_t kNumDigits = 12;

std::string name_of(std::uint64_t step) {
  const std::string digits = std::to_string(step);
  const std::size_t num_zeros = kNumDigits - std::min(kNumDigits, digits.size());
  return concat(kPrefix, std::string(num_zeros, '0'), digits, kSuffix);
}

// Of "step-000000000120.safetensors"; nullopt for any other name.
std::optional<std::uint64_t> step_of(std::string_view name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  const std::string_view digits = name.substr(kPrefix.size());
  std::uint64_t step = 0;
  const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  if (parsed.ec != std::errc() || name != name_of(step)) return std::nullopt;
  return step;
}

bool is_temporary(std::string_view name) {
  const std::size_t place = name.find(kTemporary);
  return place != name.npos && step_of(name.substr(0, place));
}

template <typename Call>
auto retry_interrupted(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

void write_all(int fd, std::string_view bytes, const std::string& what) {
  while (!bytes.empty()) {
    const ssize_t n = retry_interrupted([&] { return ::write(fd, bytes.data(), bytes.size()); });
    if (n < 0) throw_system_error(what, errno);
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
}

// What was made, renamed or removed in it is there after a power loss, too.
void sync_directory(const std::string& path, const std::string& what) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) throw_system_error(what, errno);
  // EINVAL: a file system without it, which has no such need.
  if (::fsync(fd.get()) != 0 && errno != EINVAL) throw_system_error(what, errno);
}

std::string read_file(const std::string& path) {
  const std::string what = "can't read the checkpoint " + path;
  // O_NONBLOCK: somebody's pipe of that name must not hold us up.
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) throw_system_error(what, errno);
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) throw_system_error(what, errno);
  std::string bytes(static_cast<std::size_t>(info.st_size), '\0');
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = retry_interrupted(
        [&] { return ::read(fd.get(), bytes.data() + done, bytes.size() - done); });
    if (n < 0) throw_system_error(what, errno);
    if (n == 0) break;
    done += static_cast<std::size_t>(n);
  }
  bytes.resize(done);
  return bytes;
}

}  // namespace

CheckpointDirectory::CheckpointDirectory(std::string path) : path_(std::move(path)) {
  const auto refuse = [&](int error_number) {
    throw Error(ErrorCode::kInvalidArgument,
                concat("--checkpoint-dir: can't write to ", path_, ": ", errno_text(error_number)));
  };
  std::error_code error;
  const bool made = fs::create_directories(path_, error);
  if (error) refuse(error.value());
  if (!fs::is_directory(path_, error)) refuse(ENOTDIR);
  if (::access(path_.c_str(), R_OK | W_OK | X_OK) != 0) refuse(errno);
  if (made) sync_directory(fs::absolute(path_).parent_path().string(), "can't make " + path_);
  for (const fs::directory_entry& entry : fs::directory_iterator(path_, error)) {
    std::error_code ignored;
    if (is_temporary(entry.path().filename().string())) fs::remove(entry.path(), ignored);
  }
  if (error) refuse(error.value());
}

std::string CheckpointDirectory::path_of(std::uint64_t step) const {
  return path_ + "/" + name_of(step);
}

std::vector<std::uint64_t> CheckpointDirectory::steps() const {
  std::vector<std::uint64_t> steps;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(path_, error)) {
    if (const auto step = step_of(entry.path().filename().string())) steps.push_back(*step);
  }
  if (error) throw_system_error("can't read the directory " + path_, error.value());
  std::sort(steps.begin(), steps.end());
  return steps;
}

std::unique_ptr<LoadedCheckpoint> CheckpointDirectory::newest() {
  const std::vector<std::uint64_t> all = steps();
  std::vector<std::pair<std::string, std::string>> damaged;  // path, why
  for (auto step = all.rbegin(); step != all.rend(); ++step) {
    auto loaded = std::make_unique<LoadedCheckpoint>();
    loaded->path = path_of(*step);
    loaded->step = *step;
    loaded->bytes = read_file(loaded->path);
    try {
      loaded->content = decode_state_file(loaded->bytes);
    } catch (const Error& error) {
      damaged.emplace_back(loaded->path, error.what());
      continue;
    }
    for (const auto& [path, why] : damaged) {
      log_warning("checkpoint ", path, " is damaged (", why,
                  "): the one before it is taken, it is kept as ", path, ".damaged");
      std::error_code ignored;
      fs::rename(path, path + ".damaged", ignored);
    }
    return loaded;
  }
  if (damaged.empty()) return nullptr;
  throw Error(ErrorCode::kInvalidArgument,
              concat("no whole checkpoint is left: ", damaged.front().first, ": ",
                     damaged.front().second, "; move it away to begin anew"));
}

std::string CheckpointDirectory::write(std::uint64_t step, const Metadata& metadata,
                                       const std::vector<TensorBytes>& tensors) {
  const std::string path = path_of(step);
  const std::string temporary = concat(path, kTemporary, ::getpid());
  const std::string what = concat("can't write the checkpoint ", path);
  try {
    UniqueFd fd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
    if (!fd) throw_system_error(what, errno);
    write_all(fd.get(), encode_header(metadata, tensors), what);
    for (const TensorBytes& tensor : tensors) write_all(fd.get(), tensor.bytes, what);
    if (::fsync(fd.get()) != 0) throw_system_error(what, errno);
    // A network's file system may say only now that there was no room.
    if (::close(fd.release()) != 0) throw_system_error(what, errno);
    if (::rename(temporary.c_str(), path.c_str()) != 0) throw_system_error(what, errno);
    sync_directory(path_, what);
  } catch (const Error&) {
    ::unlink(temporary.c_str());
    throw;
  }
  remove_older_than(step);
  return path;
}

// What is newer than `step` stays: it is of a training that went on elsewhere.
void CheckpointDirectory::remove_older_than(std::uint64_t step) {
  std::vector<std::uint64_t> older = steps();
  older.erase(std::lower_bound(older.begin(), older.end(), step), older.end());
  for (std::size_t i = 0; i + kNumKept - 1 < older.size(); ++i) {
    ::unlink(path_of(older[i]).c_str());
  }
}

}  // namespace ddprun::train
