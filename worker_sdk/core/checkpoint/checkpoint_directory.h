// SPDX-License-Identifier: Apache-2.0
// A training's checkpoints on disk. Each is one file, as step-000000000120.safetensors, or such a
// file and a shard of each rank. A file under its final name is whole, even if the machine fails
// meanwhile. The newest few are kept.
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
//   step-000000000120.safetensors                       the checkpoint of step 120; if it has
//                                                       shards, the data common to them
//   step-000000000120.3f9a1c22.rank-2-of-4.safetensors  the shard that rank 2 of 4 wrote, of save
//                                                       3f9a1c22
//   NAME.tmp-…                                          not whole yet; may never become so
//   NAME.damaged                                        was found damaged, and is not used

// A writer adds this mark and random digits to the name of a file that isn't whole yet.
inline constexpr std::string_view kTemporaryMark = ".tmp-";
inline constexpr std::string_view kDamagedMark = ".damaged";

struct ShardPlace {
  std::uint64_t step = 0;
  std::string save;  // 8 lower-case hexadecimal digits, drawn for each save
  int rank = 0;
  int size = 1;

  bool operator==(const ShardPlace&) const = default;
};

std::string checkpoint_name(std::uint64_t step);
std::string shard_name(const ShardPlace& place);

// Return nullopt for any other name.
std::optional<std::uint64_t> parse_checkpoint_name(std::string_view name);
std::optional<ShardPlace> parse_shard_name(std::string_view name);

// True for the temporary names of checkpoints and of shards.
bool is_temporary_name(std::string_view name);

struct LoadedCheckpoint {
  std::string path;
  std::uint64_t step = 0;        // from its name
  std::list<std::string> bytes;  // the files' bytes
  Safetensors content;           // over `bytes`; has all shards' tensors, by rank
  int num_shards = 0;            // 0: no shards
  std::string save;              // ShardPlace::save of its shards
};

// Used by one thread at a time. Files of other names are left alone.
class CheckpointDirectory {
 public:
  // kOwner: the one process that reads, commits and clears up: rank 0. kShardWriter: any other.
  enum class Role { kOwner, kShardWriter };

  // The owner makes the directory if it is missing, and removes temporary files of writers that
  // were killed. `num_kept` ≥ 1. Throws Error(kInvalidArgument) if the directory can't be made or
  // written to. The same if another process of this machine owns it and doesn't end within 5 s.
  explicit CheckpointDirectory(std::string path, std::size_t num_kept = 2,
                               Role role = Role::kOwner);

  const std::string& path() const { return path_; }
  // Return the path of that checkpoint or shard, which need not exist.
  std::string path_of(std::uint64_t step) const { return path_ + "/" + checkpoint_name(step); }
  std::string path_of(const ShardPlace& place) const { return path_ + "/" + shard_name(place); }

  // Reads the newest checkpoint that is whole, its shards included. null: the directory has no
  // checkpoint. Each newer one that isn't whole gets a warning and the name NAME.damaged. Throws
  // Error(kInvalidArgument) if there are some and none is whole: to begin anew is the user's
  // decision. Throws Error(kSystem) if one can't be read.
  std::unique_ptr<LoadedCheckpoint> newest();

  // Writes a checkpoint and returns its path. When it returns, the file is on disk, and the newest
  // `num_kept` − 1 older ones are left. Throws Error(kSystem) (disk full, …); all older ones are
  // then still there.
  std::string write(std::uint64_t step, const Metadata& metadata,
                    const std::vector<TensorBytes>& tensors);

  // Writes the shard of `place.rank`. It is valid only after commit(). Throws as write() does.
  void write_shard(const ShardPlace& place, const std::vector<TensorBytes>& tensors);

  // Completes the checkpoint of `place`'s save. True: all its shards are there, so it is valid, and
  // older ones are removed as by write(). False: a shard isn't there yet. Ranks call it after
  // their shards, several at once, too, for they write the same. `metadata` has no key "shards" or
  // "save". Throws as write() does.
  bool commit(const ShardPlace& place, Metadata metadata);

 private:
  std::vector<std::string> names() const;
  std::vector<std::uint64_t> steps() const;  // of the checkpoints, ascending
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
