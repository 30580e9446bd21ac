// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/checkpoint/checkpoint_directory.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <iterator>
#include <set>
#include <system_error>
#include <utility>

#include "common/log.h"
#include "common/parsed_number.h"
#include "common/regular_file.h"
#include "common/throw_error.h"

namespace ddprun {
namespace {

constexpr std::string_view kPrefix = "step-", kSuffix = ".safetensors", kRank = ".rank-",
                           kOf = "-of-";
constexpr std::size_t kNumDigits = 12, kNumSaveDigits = 8;

std::string stem(std::uint64_t step) {
  const std::string digits = std::to_string(step);
  const std::size_t num_zeros = kNumDigits - std::min(kNumDigits, digits.size());
  return concat(kPrefix, std::string(num_zeros, '0'), digits);
}

void take(std::string_view& text, std::size_t size) {
  text.remove_prefix(std::min(text.size(), size));
}

bool is_save(std::string_view text) {
  return text.size() == kNumSaveDigits &&
         text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

namespace fs = std::filesystem;

constexpr const char *kShardsKey = "shards", *kSaveKey = "save";
constexpr int kMostShards = 1'000'000;
constexpr std::chrono::seconds kPatience{5};  // wait for the end of a process that was killed

[[noreturn]] void throw_unusable(const std::string& why) { throw Error(ErrorCode::kProtocol, why); }

Safetensors decode(std::string_view bytes) {
  Safetensors content = decode_safetensors(bytes);
  if (!content.has_checksum) throw_unusable("it has no checksum: no checkpoint of ddprun");
  return content;
}

// A directory or a dangling link under a checkpoint's name counts as damaged.
std::string read_file(const std::string& path) {
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) throw_unusable("it is a directory");
  if (const std::string link = dangling_link(path); !link.empty()) throw_unusable(link);
  return read_whole(path);
}

void write_file(const std::string& path, const Metadata& metadata,
                const std::vector<TensorBytes>& tensors) {
  const std::string header = encode_header(metadata, tensors);
  std::vector<std::string_view> pieces{header};
  for (const TensorBytes& tensor : tensors) pieces.push_back(tensor.bytes);
  write_durably(path, pieces);
}

// Returns the words for one rank's file.
std::string shard_text(const ShardPlace& place) {
  return concat("the shard of rank ", place.rank, " of ", place.size);
}

}  // namespace

std::string checkpoint_name(std::uint64_t step) { return concat(stem(step), kSuffix); }

std::string shard_name(const ShardPlace& place) {
  return concat(stem(place.step), '.', place.save, kRank, place.rank, kOf, place.size, kSuffix);
}

std::optional<std::uint64_t> parse_checkpoint_name(std::string_view name) {
  std::string_view rest = name;
  take(rest, kPrefix.size());
  const auto step = take_number<std::uint64_t>(rest);
  if (!step || name != checkpoint_name(*step)) return std::nullopt;
  return step;
}

std::optional<ShardPlace> parse_shard_name(std::string_view name) {
  ShardPlace place;
  std::string_view rest = name;  // a number that it lacks becomes 0: then the names differ
  take(rest, kPrefix.size());
  place.step = take_number<std::uint64_t>(rest).value_or(0);
  take(rest, 1);
  place.save = rest.substr(0, kNumSaveDigits);
  take(rest, kNumSaveDigits + kRank.size());
  place.rank = take_number<int>(rest).value_or(0);
  take(rest, kOf.size());
  place.size = take_number<int>(rest).value_or(0);
  const bool is_one = is_save(place.save) && place.rank >= 0 && place.rank < place.size;
  if (!is_one || name != shard_name(place)) return std::nullopt;
  return place;
}

bool is_temporary_name(std::string_view name) {
  const std::size_t mark = name.find(kTemporaryMark);
  if (mark == name.npos) return false;
  const std::string_view target = name.substr(0, mark);
  return parse_checkpoint_name(target) || parse_shard_name(target);
}

CheckpointDirectory::CheckpointDirectory(std::string path, std::size_t num_kept, Role role)
    : path_(std::move(path)), num_kept_(num_kept) {
  if (num_kept_ < 1) throw_invalid("a directory keeps at least one checkpoint");
  const auto refuse = [&](int error_number) {
    const std::string link = dangling_link(path_);
    throw_invalid("can't write to the checkpoint directory ", path_, ": ",
                  link.empty() ? errno_text(error_number) : link);
  };
  std::error_code error;
  const bool made = role == Role::kOwner && fs::create_directories(path_, error);
  if (error) refuse(error.value());
  if (!fs::is_directory(path_, error)) refuse(ENOTDIR);
  if (::access(path_.c_str(), R_OK | W_OK | X_OK) != 0) refuse(errno);
  if (made) sync_directory(fs::absolute(path_).parent_path().string(), "can't make " + path_);
  if (role != Role::kOwner) return;
  lock_.emplace(path_, kPatience);
  remove_leftovers();
}

std::vector<std::string> CheckpointDirectory::names() const {
  std::vector<std::string> names;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(path_, error)) {
    names.push_back(entry.path().filename().string());
  }
  if (error) throw_system_error("can't read the directory " + path_, error.value());
  return names;
}

std::vector<std::uint64_t> CheckpointDirectory::steps() const {
  std::vector<std::uint64_t> steps;
  for (const std::string& name : names()) {
    if (const auto step = parse_checkpoint_name(name)) steps.push_back(*step);
  }
  std::ranges::sort(steps);
  return steps;
}

// Removes temporary files and shards without a checkpoint. A damaged one keeps its shards.
void CheckpointDirectory::remove_leftovers() {
  const std::vector<std::string> all = names();
  const std::set<std::string> known(all.begin(), all.end());
  for (const std::string& name : all) {
    const auto shard = parse_shard_name(name);
    const bool counts = !shard || known.count(checkpoint_name(shard->step)) > 0 ||
                        known.count(concat(checkpoint_name(shard->step), kDamagedMark)) > 0;
    std::error_code ignored;
    if (!counts || is_temporary_name(name)) fs::remove(path_ + "/" + name, ignored);
  }
}

// Reads the file at loaded.path, and its shards. Throws Error(kProtocol): it is damaged.
void CheckpointDirectory::read(LoadedCheckpoint& loaded) const {
  loaded.content = decode(loaded.bytes.emplace_back(read_file(loaded.path)));
  const auto shards = loaded.content.metadata.extract(kShardsKey);
  const auto save = loaded.content.metadata.extract(kSaveKey);
  if (shards.empty() || save.empty()) return;
  ShardPlace place{.step = loaded.step, .save = save.mapped()};
  place.size = parsed_number<int>(shards.mapped()).value_or(0);
  if (place.size < 1 || place.size > kMostShards || !parse_shard_name(shard_name(place))) {
    throw_unusable("its number of shards is none");
  }
  loaded.num_shards = place.size;
  loaded.save = place.save;
  for (; place.rank < place.size; ++place.rank) {
    if (::access(path_of(place).c_str(), F_OK) != 0)
      throw_unusable(shard_text(place) + " is missing");
    try {
      Safetensors shard = decode(loaded.bytes.emplace_back(read_file(path_of(place))));
      std::move(shard.tensors.begin(), shard.tensors.end(),
                std::back_inserter(loaded.content.tensors));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kProtocol) throw;
      throw_unusable(concat(shard_text(place), ": ", error.what()));
    }
  }
}

std::unique_ptr<LoadedCheckpoint> CheckpointDirectory::newest() {
  const std::vector<std::uint64_t> all = steps();
  std::vector<std::pair<std::string, std::string>> damaged;  // path, why
  for (auto step = all.rbegin(); step != all.rend(); ++step) {
    auto loaded = std::make_unique<LoadedCheckpoint>();
    loaded->path = path_of(*step);
    loaded->step = *step;
    try {
      read(*loaded);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kProtocol) throw;
      damaged.emplace_back(loaded->path, error.what());
      continue;
    }
    for (const auto& [path, why] : damaged) {
      log_warning("checkpoint ", path, " is damaged (", why,
                  "): the one before it is taken, it is kept as ", path, kDamagedMark);
      std::error_code ignored;
      fs::rename(path, concat(path, kDamagedMark), ignored);
    }
    return loaded;
  }
  if (damaged.empty()) return nullptr;
  const std::size_t num_older = damaged.size() - 1;
  const std::string rest =
      num_older == 0 ? "; move it" : concat(", and ", num_older, " older, damaged, too; move them");
  throw_invalid("no whole checkpoint is left: ", damaged.front().first, ": ",
                damaged.front().second, rest, " away to begin anew");
}

std::string CheckpointDirectory::write(std::uint64_t step, const Metadata& metadata,
                                       const std::vector<TensorBytes>& tensors) {
  write_file(path_of(step), metadata, tensors);
  remove_outdated(step, "");
  return path_of(step);
}

void CheckpointDirectory::write_shard(const ShardPlace& place,
                                      const std::vector<TensorBytes>& tensors) {
  write_file(path_of(place), {}, tensors);
}

bool CheckpointDirectory::is_committed(const ShardPlace& place) const {
  const std::string path = path_of(place.step);
  if (::access(path.c_str(), F_OK) != 0) return false;
  try {
    const std::string bytes = read_whole(path);
    const Safetensors file = decode(bytes);
    const auto save = file.metadata.find(kSaveKey);
    return save != file.metadata.end() && save->second == place.save;
  } catch (const Error&) {
    return false;  // the caller then replaces it
  }
}

bool CheckpointDirectory::commit(const ShardPlace& place, Metadata metadata) {
  if (is_committed(place)) return true;
  ShardPlace each = place;
  for (each.rank = 0; each.rank < each.size; ++each.rank) {
    if (::access(path_of(each).c_str(), F_OK) != 0) return false;
  }
  metadata[kShardsKey] = std::to_string(place.size);
  metadata[kSaveKey] = place.save;
  const std::string header = encode_header(metadata, {});
  write_durably(path_of(place.step), {header});
  remove_outdated(place.step, place.save);
  return true;
}

// Keeps checkpoints newer than `step`: a training that went on elsewhere wrote them. Removes a
// checkpoint before its shards, and this step's shards of other saves.
void CheckpointDirectory::remove_outdated(std::uint64_t step, const std::string& save) {
  std::vector<std::uint64_t> older = steps();
  older.erase(std::lower_bound(older.begin(), older.end(), step), older.end());
  older.resize(older.size() - std::min(older.size(), num_kept_ - 1));
  for (const std::uint64_t each : older) ::unlink(path_of(each).c_str());
  for (const std::string& name : names()) {
    const auto shard = parse_shard_name(name);
    if (!shard) continue;
    const bool is_older = std::ranges::binary_search(older, shard->step);
    const bool is_replaced = shard->step == step && shard->save != save;
    if (is_older || is_replaced) ::unlink(path_of(*shard).c_str());
  }
}

}  // namespace ddprun
