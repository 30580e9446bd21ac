// SPDX-License-Identifier: Apache-2.0
// Checkpoints in shards on disk.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "common/log.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/temp_directory.h"
#include "worker_sdk/core/checkpoint/checkpoint_directory.h"

using namespace ddprun;
using test::contains;

namespace fs = std::filesystem;

namespace {

const char* const kSave = "00000001";

ShardPlace place(std::uint64_t step, int rank, const std::string& save = kSave) {
  return {.step = step, .save = save, .rank = rank, .size = 3};
}

void write_shard(CheckpointDirectory& directory, const ShardPlace& at) {
  const std::string bytes(8, static_cast<char>('a' + at.rank));
  directory.write_shard(
      at,
      {{.name = "of " + std::to_string(at.rank), .dtype = "F32", .shape = {2}, .bytes = bytes}});
}

void write_all(CheckpointDirectory& directory, std::uint64_t step, const std::string& save) {
  for (int rank = 0; rank < 3; ++rank) write_shard(directory, place(step, rank, save));
  CHECK(directory.commit(place(step, 1, save), {{"note", "x"}}));
}

std::size_t num_files(const std::string& path) {
  return static_cast<std::size_t>(
      std::distance(fs::directory_iterator(path), fs::directory_iterator()));
}

std::vector<std::string> shard_warnings;
void keep_shard_warning(LogLevel, std::string_view text) { shard_warnings.emplace_back(text); }

}  // namespace

TEST_CASE("shards: a step counts when all are there, whoever was the last", "[proc]") {
  const test::TempDirectory temp;
  CheckpointDirectory owner(temp.path());
  CheckpointDirectory other(temp.path(), 2, CheckpointDirectory::Role::kShardWriter);
  write_shard(owner, place(5, 0));
  CHECK_FALSE(owner.commit(place(5, 0), {{"note", "x"}}));
  write_shard(other, place(5, 2));
  CHECK_FALSE(other.commit(place(5, 2), {{"note", "x"}}));
  CHECK(owner.newest() == nullptr);
  write_shard(other, place(5, 1));
  CHECK(other.commit(place(5, 1), {{"note", "x"}}));
  CHECK(owner.commit(place(5, 0), {{"note", "not written: it counts already"}}));
  const auto newest = owner.newest();
  REQUIRE(newest);
  CHECK(newest->step == 5);
  CHECK(newest->num_shards == 3);
  CHECK(newest->save == kSave);
  CHECK(newest->content.metadata == Metadata{{"note", "x"}});
  REQUIRE(newest->content.tensors.size() == 3);
  CHECK(newest->content.tensors[2].name == "of 2");
  CHECK(newest->content.tensors[2].bytes == "cccccccc");
}

TEST_CASE("shards: older steps go with theirs, and so do those of another save", "[proc]") {
  const test::TempDirectory temp;
  CheckpointDirectory directory(temp.path());
  for (const std::uint64_t step : {1, 2, 3}) write_all(directory, step, kSave);
  CHECK(num_files(temp.path()) == 8);
  CHECK_FALSE(fs::exists(directory.path_of(place(1, 0))));
  write_all(directory, 3, "00000002");
  CHECK(num_files(temp.path()) == 8);
  CHECK(directory.newest()->save == "00000002");
  directory.write(4, {}, {});
  CHECK(num_files(temp.path()) == 5);
}

TEST_CASE("shards: files that a killed writer left go at the next start, a complete save stays",
          "[proc]") {
  const test::TempDirectory temp;
  {
    CheckpointDirectory directory(temp.path());
    write_all(directory, 1, kSave);
    write_shard(directory, place(2, 0));
    write_shard(directory, place(2, 1));
    std::ofstream(directory.path_of(place(2, 2)) + ".tmp-0-4711") << "half";
  }
  const CheckpointDirectory other(temp.path(), 2, CheckpointDirectory::Role::kShardWriter);
  CHECK(num_files(temp.path()) == 7);  // only the owner may remove it
  CheckpointDirectory directory(temp.path());
  CHECK(num_files(temp.path()) == 4);
  CHECK(directory.newest()->step == 1);
}

TEST_CASE("shards: one that is missing or torn puts the step aside, and nothing is deleted",
          "[proc]") {
  for (const bool missing : {true, false}) {
    const test::TempDirectory temp;
    CheckpointDirectory directory(temp.path());
    write_all(directory, 1, kSave);
    write_all(directory, 2, kSave);
    const std::string shard = directory.path_of(place(2, 1));
    if (missing) {
      fs::remove(shard);
    } else {
      fs::resize_file(shard, fs::file_size(shard) - 1);
    }
    shard_warnings.clear();
    set_log_sink(keep_shard_warning);
    CHECK(directory.newest()->step == 1);
    REQUIRE(shard_warnings.size() == 1);
    CHECK(contains(shard_warnings[0],
                   directory.path_of(2) + " is damaged (the shard of rank 1 of 3"));
    CHECK(contains(shard_warnings[0], missing ? " is missing)" : ": it is cut off: "));
    const std::size_t before = num_files(temp.path());
    CHECK(CheckpointDirectory(temp.path()).newest()->step == 1);
    CHECK(num_files(temp.path()) == before);
  }
}

TEST_CASE("shards: a file that lies about them is put aside", "[proc]") {
  for (const char* count : {"0", "-1", "many", "99999999999", "2x"}) {
    const test::TempDirectory temp;
    CheckpointDirectory directory(temp.path());
    directory.write(1, {}, {});
    directory.write(2, {{"shards", count}, {"save", kSave}}, {});
    set_log_sink(keep_shard_warning);
    CHECK(directory.newest()->step == 1);
  }
}
