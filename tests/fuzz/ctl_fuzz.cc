// SPDX-License-Identifier: Apache-2.0
// Fuzzes the TOML files that ddprunctl reads: after a 'd' doctor's thresholds, else a job file.
// Beyond "no crash" this must hold:
// - a bad file is refused with one Error(kInvalidArgument); each of its lines begins with the
//   file's name and has no other control character;
// - a job file means a command line that a process can have;
// - a threshold is a number of 0 or more.
#include <algorithm>
#include <cstdint>
#include <sstream>
#include <string>
#include <string_view>

#include "common/check.h"
#include "common/error.h"
#include "ctl/doctor/thresholds.h"
#include "ctl/submit/ddprun_command.h"
#include "ctl/submit/job_file.h"

namespace {

using namespace ddprun;

void check_refusal(const Error& error) {
  DDPRUN_CHECK(error.code() == ErrorCode::kInvalidArgument);
  std::istringstream lines(error.what());
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    DDPRUN_CHECK(line.starts_with("file:"));
    DDPRUN_CHECK(
        std::none_of(line.begin(), line.end(), [](unsigned char letter) { return letter < ' '; }));
  }
  DDPRUN_CHECK(count > 0);
}

void read_thresholds(std::string_view text) {
  const auto thresholds = doctor::Thresholds::parse(text, "file");
  for (const auto& each : doctor::threshold_table()) DDPRUN_CHECK(thresholds.at(each.key) >= 0);
}

void read_job(std::string_view text) {
  const auto job = submit::JobFile::parse(text, "file", "/home/ada");
  DDPRUN_CHECK(!job.name.empty() && !job.command.empty());
  DDPRUN_CHECK(job.min_nodes <= job.max_nodes && job.spares >= 0);
  DDPRUN_CHECK(job.work_directory().starts_with('/'));
  const auto words = submit::ddprun_command(job, {});
  DDPRUN_CHECK(words.size() > job.command.size());
  DDPRUN_CHECK(std::equal(job.command.rbegin(), job.command.rend(), words.rbegin()));
  for (const std::string& word : words) DDPRUN_CHECK(word.find('\0') == std::string::npos);
  for (const auto& [name, value] : job.environment) {
    DDPRUN_CHECK(!name.empty() && name.find('=') == std::string::npos);
    DDPRUN_CHECK(value.find('\0') == std::string::npos);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    data[0] == 'd' ? read_thresholds(text) : read_job(text);
  } catch (const Error& error) {
    check_refusal(error);
  }
  return 0;
}
