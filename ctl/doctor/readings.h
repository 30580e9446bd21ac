// SPDX-License-Identifier: Apache-2.0
// Small files of /proc, /sys and /etc, read once. Tests put a fake root in place of "/".
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun::doctor {

struct Reading {
  std::string text;  // without blanks at the end
  int error = 0;     // errno; 0: it was read
};

// The readings by path, which is as if the root were "/". Pure.
class Readings {
 public:
  void set(const std::string& path, Reading reading) { files_[path] = std::move(reading); }
  void add(const Readings& others) { files_.insert(others.files_.begin(), others.files_.end()); }

  // nullptr: the file wasn't looked at.
  const Reading* find(const std::string& path) const;
  // nullopt: the file isn't there, or can't be read.
  std::optional<std::string> text(const std::string& path) const;
  // The first number in the file; nullopt also if it has none.
  std::optional<long long> number(const std::string& path) const;
  // The entries directly in `folder` that were read, sorted by name.
  std::vector<std::string> names_in(const std::string& folder) const;

  // Converts all readings to fields without NUL, three for each, and back. Reading back stops at a
  // missing field.
  std::vector<std::string> to_fields() const;
  static Readings from_fields(const std::vector<std::string>& fields);

 private:
  std::map<std::string, Reading> files_;
};

// All whole numbers in a text, in their order.
std::vector<long long> numbers_in(std::string_view text);
std::vector<std::string> words_in(std::string_view text);
std::vector<std::string> comma_parts(std::string_view text);  // without blanks
std::vector<std::string> lines_in(std::string_view text);

// Returns the path of this process' cgroup (version 2): "/a.slice", "" at the top; nullopt: none.
std::optional<std::string> own_cgroup(const Readings& files);

// A directory used as "/". Reads block as long as the kernel needs.
class Root {
 public:
  explicit Root(std::string path = "/");

  bool is_real() const { return path_ == "/"; }
  std::string at(const std::string& path) const { return is_real() ? path : path_ + path; }
  // Reads up to 64 KiB of the file.
  Reading read(const std::string& path) const;
  void read_into(Readings& readings, const std::string& path) const;
  // Returns the names in the folder, sorted; empty: there is no such folder.
  std::vector<std::string> names(const std::string& folder) const;

 private:
  std::string path_;
};

}  // namespace ddprun::doctor
