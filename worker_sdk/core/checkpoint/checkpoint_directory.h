// SPDX-License-Identifier: Apache-2.0
// A training's checkpoints on disk: step-000000000120.safetensors and the like, each one file, or
// that and a shard of each rank. A file under its final name is whole, whatever happened to the
// machine meanwhile. The newest few are kept.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "worker_sdk/core/checkpoint/durable_file.h"
#include "worker_sdk/core/checkpoint/safetensors.h"

namespace ddprun {

// Every name in a checkpoint directory. Pure: no I/O, clock or thread.
//
//   step-000000000120.safetensors                       the checkpoint of step 120; where it has
//                                                       shards: what belongs to all of them
//   step-000000000120.3f9a1c22.rank-2-of-4.safetensors  the shard that rank 2 of 4 wrote, of save
//                                                       3f9a1c22
//   NAME.tmp-…                                          not whole yet, or never
//   NAME.damaged                                        put aside

// A writer adds this to the name of a file that isn't whole yet. Random digits follow it.
inline constexpr std::string_view kTemporaryMark = ".tmp-";
inline constexpr std::string_view kDamagedMark = ".damaged";

struct ShardPlace {
  std::uint64_t step = 0;
  std::string save;  // 8 hexadecimal digits in small letters, drawn for each save
  int rank = 0;
  int size = 1;

  bool operator==(const ShardPlace&) const = default;
};

std::string checkpoint_name(std::uint64_t step);
std::string shard_name(const ShardPlace& place);

// nullopt: any other name.
std::optional<std::uint64_t> parse_checkpoint_name(std::string_view name);
std::optional<ShardPlace> parse_shard_name(std::string_view name);

// True for the temporary names of checkpoints and of shards.
bool is_temporary_name(std::string_view name);

struct LoadedCheckpoint {
  std::string path;
  std::uint64_t step = 0;        // by its name
  std::list<std::string> bytes;  // of the files
  Safetensors content;           // over `bytes`; of all shards, by rank
  int num_shards = 0;            // 0: it has none
  std::string save;              // of its shards
};

// One thread at a time. Files of other names are left alone.
class CheckpointDirectory {
 public:
  // kOwner: the one process that reads, commits and clears up: rank 0. kShardWriter: another one.
  enum class Role { kOwner, kShardWriter };

  // The owner makes the directory where it is missing, and removes what writers that were killed
  // have left. `num_kept` ≥ 1. Throws Error(kInvalidArgument) where it can't be made, or written
  // to, or where another process of this machine owns it and doesn't end within 5 s.
  explicit CheckpointDirectory(std::string path, std::size_t num_kept = 2,
                               Role role = Role::kOwner);

  const std::string& path() const { return path_; }
  // The path of that checkpoint or shard, which need not exist.
  std::string path_of(std::uint64_t step) const { return path_ + "/" + checkpoint_name(step); }
  std::string path_of(const ShardPlace& place) const { return path_ + "/" + shard_name(place); }

  // The newest that is whole, its shards included; null: the directory has none of any kind. Each
  // newer one that isn't gets a warning and the name NAME.damaged. Throws Error(kInvalidArgument)
  // where none of several is whole: to begin anew is the user's decision; Error(kSystem) where one
  // can't be read.
  std::unique_ptr<LoadedCheckpoint> newest();

  // Its path. When it returns the file is on disk, and of those that are older the newest
  // `num_kept` − 1 are left. Throws Error(kSystem) (disk full, …); then the older ones are all
  // still there.
  std::string write(std::uint64_t step, const Metadata& metadata,
                    const std::vector<TensorBytes>& tensors);

  // The shard `place.rank`. It counts once commit() was done. Throws as write() does.
  void write_shard(const ShardPlace& place, const std::vector<TensorBytes>& tensors);

  // True: the checkpoint of `place`'s save counts, for all its shards are there, and the older ones
  // are removed as by write(). False: one isn't there yet. Whichever rank's shard was the last one
  // may call it, several at once, too: they write the same. `metadata` has no key "shards" or
  // "save". Throws as write() does.
  bool commit(const ShardPlace& place, Metadata metadata);

 private:
  std::vector<std::string> names() const;
  std::vector<std::uint64_t> steps() const;  // with a checkpoint, ascending
  bool is_committed(const ShardPlace& place) const;
  void remove_leftovers();
  void read(LoadedCheckpoint& loaded) const;
  void remove_outdated(std::uint64_t step, const std::string& save);

  // Constant after construction.
  const std::string path_;
  const std::size_t num_kept_;
  std::optional<DirectoryLock> lock_;  // the owner's
};

}  // namespace ddprun
