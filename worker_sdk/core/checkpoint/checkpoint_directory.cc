// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/checkpoint/checkpoint_directory.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "common/error.h"
#include "common/log.h"
#include "worker_sdk/core/checkpoint/durable_file.h"

namespace ddprun {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step-", kSuffix = ".safetensors";
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
  const std::size_t place = name.find(kTemporaryMark);
  return place != name.npos && step_of(name.substr(0, place));
}

}  // namespace

CheckpointDirectory::CheckpointDirectory(std::string path, std::size_t num_kept)
    : path_(std::move(path)), num_kept_(num_kept) {
  if (num_kept_ < 1)
    throw Error(ErrorCode::kInvalidArgument, "a directory keeps at least one checkpoint");
  const auto refuse = [&](int error_number) {
    throw Error(ErrorCode::kInvalidArgument, concat("can't write to the checkpoint directory ",
                                                    path_, ": ", errno_text(error_number)));
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
    loaded->bytes = read_whole(loaded->path);
    try {
      loaded->content = decode_safetensors(loaded->bytes);
      if (!loaded->content.has_checksum) {
        throw Error(ErrorCode::kProtocol, "it has no checksum: no checkpoint of ddprun");
      }
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
  const std::string header = encode_header(metadata, tensors);
  std::vector<std::string_view> pieces{header};
  for (const TensorBytes& tensor : tensors) pieces.push_back(tensor.bytes);
  write_durably(path, pieces);
  remove_older_than(step);
  return path;
}

// What is newer than `step` stays: it is of a training that went on elsewhere.
void CheckpointDirectory::remove_older_than(std::uint64_t step) {
  std::vector<std::uint64_t> older = steps();
  older.erase(std::lower_bound(older.begin(), older.end(), step), older.end());
  for (std::size_t i = 0; i + num_kept_ - 1 < older.size(); ++i) {
    ::unlink(path_of(older[i]).c_str());
  }
}

}  // namespace ddprun
