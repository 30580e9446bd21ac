// SPDX-License-Identifier: Apache-2.0
#include "agent/output/log_queue.h"

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "common/error.h"
#include "tests/support/catch.h"
#include "tests/support/full_disk.h"
#include "tests/support/temp_directory.h"

namespace ddprun::agent {
namespace {

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

LogFileOptions bounded(std::size_t max_bytes, int keep) {
  LogFileOptions options;
  options.max_bytes = max_bytes;
  options.keep = keep;
  return options;
}

TEST_CASE("log file: written bytes are in the file at once") {
  const test::TempDirectory directory;
  LogFile file(directory.path("x"), {});
  CHECK(std::filesystem::exists(file.path()));
  file.write("one\n");
  file.write(std::string("\0two", 4));
  CHECK(read_file(file.path()) == std::string("one\n\0two", 8));
}

TEST_CASE("log file: a bounded file is rotated between lines, and so many stay") {
  const test::TempDirectory directory;
  LogFile file(directory.path("x"), bounded(10, 2));
  for (int i = 0; i < 9; ++i) file.write("line" + std::to_string(i) + "\n");  // 6 bytes each
  CHECK(read_file(directory.path("x")) == "line8\n");
  CHECK(read_file(directory.path("x.1")) == "line7\n");
  CHECK(read_file(directory.path("x.2")) == "line6\n");
  CHECK_FALSE(std::filesystem::exists(directory.path("x.3")));
}

TEST_CASE("log file: one write of many lines fills file after file") {
  const test::TempDirectory directory;
  LogFile file(directory.path("x"), bounded(12, 9));
  file.write("aaaa\nbbbb\ncccc\ndddd\nee");
  CHECK(read_file(directory.path("x.1")) == "aaaa\nbbbb\n");
  CHECK(read_file(directory.path("x")) == "cccc\ndddd\nee");
}

TEST_CASE("log file: lines longer than the bound are kept whole in what they came with") {
  const test::TempDirectory directory;
  LogFile file(directory.path("x"), bounded(4, 9));
  file.write("longer line\nx\n");
  CHECK(read_file(directory.path("x.1")) == "longer line\n");
  CHECK(read_file(directory.path("x")) == "x\n");
}

TEST_CASE("log file: a bounded file that keeps no older ones is overwritten") {
  const test::TempDirectory directory;
  LogFile file(directory.path("x"), bounded(4, 0));
  file.write("abc\ndef\n");
  CHECK(read_file(directory.path("x")) == "def\n");
  CHECK_FALSE(std::filesystem::exists(directory.path("x.1")));
}

TEST_CASE("log file: a failed write is told, and the next one tries again") {
  const test::TempDirectory directory;
  std::size_t lost = 0;
  std::string error;
  LogFileOptions options;
  options.lost = [&](const std::string&, const std::string& why, std::size_t num_bytes) {
    error = why;
    lost += num_bytes;
  };
  const std::string parent = directory.path("later");
  LogFile file(parent + "/x", options);
  file.write("abc");
  CHECK(error == errno_text(ENOENT));
  CHECK(lost == 3);
  std::filesystem::create_directory(parent);
  file.write("def");
  CHECK(lost == 3);
  CHECK(read_file(parent + "/x") == "def");
  const test::FullDisk full(3);
  file.write("1234");
  CHECK(error == errno_text(EFBIG));
  CHECK(lost == 7);
}

}  // namespace
}  // namespace ddprun::agent
