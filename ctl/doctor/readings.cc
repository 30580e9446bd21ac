// SPDX-License-Identifier: Apache-2.0
#include "ctl/doctor/readings.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <utility>

#include "common/fd_text.h"
#include "common/process_facts.h"
#include "common/text.h"
#include "common/unique_fd.h"

namespace ddprun::doctor {
namespace {

constexpr std::size_t kMaxReadingBytes = 64 << 10;
constexpr char kSpaces[] = " \t\r\n";

std::string without_end(std::string text) {
  std::replace(text.begin(), text.end(), '\0', ' ');
  text.erase(text.find_last_not_of(kSpaces) + 1);
  return text;
}

}  // namespace

const Reading* Readings::find(const std::string& path) const {
  const auto found = files_.find(path);
  return found == files_.end() ? nullptr : &found->second;
}

std::optional<std::string> Readings::text(const std::string& path) const {
  const Reading* reading = find(path);
  if (reading == nullptr || reading->error != 0) return std::nullopt;
  return reading->text;
}

std::optional<long long> Readings::number(const std::string& path) const {
  const auto found = text(path);
  const auto numbers = numbers_in(found.value_or(""));
  return numbers.empty() ? std::nullopt : std::optional(numbers.front());
}

std::vector<std::string> Readings::names_in(const std::string& folder) const {
  std::vector<std::string> names;
  const std::string start = folder + "/";
  for (auto at = files_.lower_bound(start); at != files_.end(); ++at) {
    if (!at->first.starts_with(start)) break;
    std::string name = at->first.substr(start.size());
    name.resize(std::min(name.find('/'), name.size()));
    if (names.empty() || names.back() != name) names.push_back(std::move(name));
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

std::vector<std::string> Readings::to_fields() const {
  std::vector<std::string> fields;
  for (const auto& [path, reading] : files_) {
    fields.insert(fields.end(), {path, std::to_string(reading.error), reading.text});
  }
  return fields;
}

Readings Readings::from_fields(const std::vector<std::string>& fields) {
  Readings readings;
  for (std::size_t i = 0; i + 2 < fields.size(); i += 3) {
    const auto errors = numbers_in(fields[i + 1]);
    readings.set(fields[i],
                 {fields[i + 2], errors.empty() ? EPROTO : static_cast<int>(errors.front())});
  }
  return readings;
}

std::vector<long long> numbers_in(std::string_view text) {
  std::vector<long long> numbers;
  for (const std::string& word : words_in(text)) {
    long long number = 0;
    const char* end = word.data() + word.size();
    const auto [stop, error] = std::from_chars(word.data(), end, number);
    if (error == std::errc() && (stop == end || *stop == '.')) numbers.push_back(number);
  }
  return numbers;
}

std::vector<std::string> words_in(std::string_view text) { return filled_parts(text, kSpaces); }
std::vector<std::string> comma_parts(std::string_view text) {
  return filled_parts(text, ", \t\r\n");
}
std::vector<std::string> lines_in(std::string_view text) { return filled_parts(text, "\n"); }

std::optional<std::string> own_cgroup(const Readings& files) {
  for (const std::string& line : lines_in(files.text("/proc/self/cgroup").value_or(""))) {
    if (line.starts_with("0::")) return line == "0::/" ? "" : line.substr(3);
  }
  return std::nullopt;
}

Root::Root(std::string path) : path_(std::move(path)) {
  while (path_.size() > 1 && path_.ends_with('/')) path_.pop_back();
}

Reading Root::read(const std::string& path) const {
  const UniqueFd fd(::open(at(path).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) return {"", errno};
  ReadText read = read_text(fd.get(), kMaxReadingBytes);
  if (read.error != 0) return {"", read.error};
  return {without_end(std::move(read.text)), 0};
}

void Root::read_into(Readings& readings, const std::string& path) const {
  readings.set(path, read(path));
}

std::vector<std::string> Root::names(const std::string& folder) const {
  return names_in(at(folder));
}

}  // namespace ddprun::doctor
