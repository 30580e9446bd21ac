// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/checkpoint/checkpoint_directory.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "common/log.h"
#include "common/text.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/temp_directory.h"

using namespace ddprun;
using test::contains;
using test::error_of;

namespace fs = std::filesystem;

namespace {

const std::string kElements(64, 'e');

void write(CheckpointDirectory& directory, std::uint64_t step) {
  directory.write(step, {{"step", std::to_string(step)}},
                  {{.name = "w", .dtype = "F32", .shape = {16}, .bytes = kElements}});
}

std::vector<std::string> names_in(const std::string& path) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(path)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string name_of(int step) {
  const std::string digits = std::to_string(step);
  return "step-" + std::string(12 - digits.size(), '0') + digits + ".safetensors";
}

void damage(const std::string& path) { fs::resize_file(path, fs::file_size(path) - 1); }

std::vector<std::string> warnings;
void keep_warning(LogLevel, std::string_view text) { warnings.emplace_back(text); }

}  // namespace

TEST_CASE("checkpoint directory: empty at first, made with the folders on its way", "[proc]") {
  const test::TempDirectory temp;
  CheckpointDirectory directory(temp.path("a/b/c"));
  CHECK(directory.newest() == nullptr);
  CHECK(fs::is_directory(temp.path("a/b/c")));
}

TEST_CASE("checkpoint directory: the newest is found, two are kept", "[proc]") {
  const test::TempDirectory temp;
  CheckpointDirectory directory(temp.path());
  for (const int step : {8, 9, 10, 1'000}) write(directory, step);
  CHECK(names_in(temp.path()) == std::vector{name_of(10), name_of(1'000)});
  const auto newest = CheckpointDirectory(temp.path()).newest();
  REQUIRE(newest);
  CHECK(newest->step == 1'000);
  CHECK(newest->path == temp.path(name_of(1'000)));
  CHECK(newest->content.metadata.at("step") == "1000");
  CHECK(newest->content.tensors.at(0).bytes == kElements);
}

TEST_CASE("checkpoint directory: one of the same step is replaced", "[proc]") {
  const test::TempDirectory temp;
  CheckpointDirectory directory(temp.path());
  write(directory, 1);
  write(directory, 2);
  write(directory, 2);
  CHECK(names_in(temp.path()) == std::vector{name_of(1), name_of(2)});
}

TEST_CASE("checkpoint directory: a torn file is named and put aside, the one before it taken",
          "[proc]") {
  const test::TempDirectory temp;
  CheckpointDirectory directory(temp.path());
  write(directory, 1);
  write(directory, 2);
  damage(temp.path(name_of(2)));
  warnings.clear();
  set_log_sink(keep_warning);
  const auto newest = directory.newest();
  REQUIRE(newest);
  CHECK(newest->step == 1);
  REQUIRE(warnings.size() == 1);
  CHECK(contains(warnings[0], name_of(2) + " is damaged (it is cut off: 64 bytes"));
  CHECK(names_in(temp.path()) == std::vector{name_of(1), name_of(2) + ".damaged"});
  // The damaged file doesn't count as a kept checkpoint.
  write(directory, 2);
  write(directory, 3);
  CHECK(names_in(temp.path()) == std::vector{name_of(2), name_of(2) + ".damaged", name_of(3)});
}

TEST_CASE("checkpoint directory: a file with a hole larger than all memory is a torn one",
          "[proc]") {
  const test::TempDirectory temp;
  CheckpointDirectory directory(temp.path());
  for (const int step : {1, 2, 3}) write(directory, step);
  constexpr std::uintmax_t kLarge = std::uintmax_t{1} << 43;
  fs::resize_file(directory.path_of(3), kLarge);
  std::ofstream(directory.path_of(4));
  fs::resize_file(directory.path_of(4), kLarge);
  warnings.clear();
  set_log_sink(keep_warning);
  const auto newest = directory.newest();
  REQUIRE(newest);
  CHECK(newest->step == 2);
  REQUIRE(warnings.size() == 2);
  CHECK(contains(warnings[0], name_of(4) + " is damaged (its header is no JSON object)"));
  CHECK(contains(warnings[1], name_of(3) + " is damaged (it has bytes that belong to no tensor)"));
}

TEST_CASE("checkpoint directory: none that is whole is an error, and nothing is touched",
          "[proc]") {
  const test::TempDirectory temp;
  CheckpointDirectory directory(temp.path());
  write(directory, 1);
  write(directory, 2);
  damage(temp.path(name_of(1)));
  damage(temp.path(name_of(2)));
  const Error error = error_of([&] { directory.newest(); });
  CHECK(error.code() == ErrorCode::kInvalidArgument);
  CHECK(contains(error.what(), "no whole checkpoint is left: " + temp.path(name_of(2))));
  CHECK(contains(error.what(), ", and 1 older, damaged, too; move them away to begin anew"));
  CHECK(names_in(temp.path()) == std::vector{name_of(1), name_of(2)});
}

TEST_CASE("checkpoint directory: a file that a killed writer left goes, other files stay",
          "[proc]") {
  const test::TempDirectory temp;
  const std::vector<std::string> others{"notes.txt", "step-12.safetensors",
                                        "step-x.safetensors.tmp-1"};
  for (const std::string& name : others) std::ofstream(temp.path(name)) << "mine";
  std::ofstream(temp.path(name_of(7) + ".tmp-0-4711")) << "half";
  CheckpointDirectory directory(temp.path());
  CHECK(names_in(temp.path()) == others);
  CHECK(directory.newest() == nullptr);
}

TEST_CASE("checkpoint directory: a link that somebody put there is not followed", "[proc]") {
  const test::TempDirectory temp;
  CheckpointDirectory directory(temp.path("shared"));
  // The name that older versions gave to a file while it was written.
  fs::create_symlink(temp.path("precious"), concat(directory.path_of(1), ".tmp-0-", ::getpid()));
  write(directory, 1);
  CHECK_FALSE(fs::exists(temp.path("precious")));
  CHECK(fs::is_regular_file(fs::symlink_status(directory.path_of(1))));
}

TEST_CASE("checkpoint directory: a pipe of that name holds nobody up", "[proc]") {
  const test::TempDirectory temp;
  CheckpointDirectory directory(temp.path());
  write(directory, 1);
  REQUIRE(::mkfifo(temp.path(name_of(2)).c_str(), 0600) == 0);
  set_log_sink(keep_warning);
  const auto newest = directory.newest();
  REQUIRE(newest);
  CHECK(newest->step == 1);
}

TEST_CASE("checkpoint directory: a directory or a link to nothing is like a torn file", "[proc]") {
  const test::TempDirectory temp;
  CheckpointDirectory directory(temp.path());
  write(directory, 1);
  fs::create_directory(temp.path(name_of(2)));
  fs::create_symlink("/gone", temp.path(name_of(3)));
  warnings.clear();
  set_log_sink(keep_warning);
  const auto newest = directory.newest();
  REQUIRE(newest);
  CHECK(newest->step == 1);
  REQUIRE(warnings.size() == 2);
  CHECK(contains(warnings[0], "is a link to /gone, which does not exist"));
  CHECK(contains(warnings[1], name_of(2) + " is damaged (it is a directory)"));
  CHECK(names_in(temp.path()) ==
        std::vector{name_of(1), name_of(2) + ".damaged", name_of(3) + ".damaged"});
  write(directory, 2);
  CHECK(names_in(temp.path()).at(1) == name_of(2));
}

TEST_CASE("checkpoint directory: a directory that can't be made is the user's to correct",
          "[proc]") {
  const test::TempDirectory temp;
  fs::create_directory_symlink("/gone", temp.path("link"));
  for (const std::string& path : {temp.path("link"), temp.path("link/below")}) {
    const Error error = error_of([&] { CheckpointDirectory directory(path); });
    CHECK(error.code() == ErrorCode::kInvalidArgument);
    CHECK(contains(error.what(), "can't write to the checkpoint directory " + path + ": " +
                                     temp.path("link") +
                                     " is a link to /gone, which does not exist"));
  }
  std::ofstream(temp.path("file")) << "a file";
  for (const std::string& path : {temp.path("file"), temp.path("file/below")}) {
    const Error error = error_of([&] { CheckpointDirectory directory(path); });
    CHECK(error.code() == ErrorCode::kInvalidArgument);
    CHECK(contains(error.what(),
                   "can't write to the checkpoint directory " + path + ": Not a directory"));
  }
}

TEST_CASE("checkpoint directory: a failed write leaves the earlier ones, and no rest", "[proc]") {
  const test::TempDirectory temp;
  CheckpointDirectory directory(temp.path());
  write(directory, 1);
  write(directory, 2);
  fs::create_directories(temp.path(name_of(3)) + "/in the way");
  const Error error = error_of([&] { write(directory, 3); });
  CHECK(error.code() == ErrorCode::kSystem);
  CHECK(contains(error.what(), "can't write the checkpoint " + temp.path(name_of(3))));
  CHECK(names_in(temp.path()) == std::vector{name_of(1), name_of(2), name_of(3)});
}

TEST_CASE("checkpoint directory: it keeps as many as was asked for", "[proc]") {
  const test::TempDirectory temp;
  CheckpointDirectory one(temp.path("one"), 1), three(temp.path("three"), 3);
  for (const int step : {1, 2, 3, 4}) {
    write(one, step);
    write(three, step);
  }
  CHECK(names_in(temp.path("one")) == std::vector{name_of(4)});
  CHECK(names_in(temp.path("three")) == std::vector{name_of(2), name_of(3), name_of(4)});
  CHECK(error_of([&] { CheckpointDirectory none(temp.path(), 0); }).code() ==
        ErrorCode::kInvalidArgument);
}

TEST_CASE("checkpoint directory: another program's safetensors are no checkpoint", "[proc]") {
  const test::TempDirectory temp;
  CheckpointDirectory directory(temp.path());
  write(directory, 1);
  std::ofstream(temp.path(name_of(2))) << std::string("\2\0\0\0\0\0\0\0{}", 10);
  warnings.clear();
  set_log_sink(keep_warning);
  const auto newest = directory.newest();
  REQUIRE(newest);
  CHECK(newest->step == 1);
  REQUIRE(warnings.size() == 1);
  CHECK(contains(warnings[0], "it has no checksum: no checkpoint of ddprun"));
}
