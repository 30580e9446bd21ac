// SPDX-License-Identifier: Apache-2.0
// Small files of /proc, /sys and /etc as they were read once, below a root that a test can fake.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun::doctor {

struct Reading {
  std::string text;  // without blanks at its end
  int error = 0;     // errno, where it could not be read
};

// By path, as it is seen below "/". Pure.
class Readings {
 public:
  void set(const std::string& path, Reading reading) { files_[path] = std::move(reading); }
  void add(const Readings& others) { files_.insert(others.files_.begin(), others.files_.end()); }

  // nullptr: nobody looked.
  const Reading* find(const std::string& path) const;
  // nullopt: it isn't there, or can't be read.
  std::optional<std::string> text(const std::string& path) const;
  // The first number in it; nullopt also where there is none.
  std::optional<long long> number(const std::string& path) const;
  // The entries directly in `folder` that were read, in the order of names.
  std::vector<std::string> names_in(const std::string& folder) const;

  // All of them as fields without NUL, three for each, and back; a field that is missing ends it.
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

// The path of this process' cgroup of version 2: "/a.slice", "" at the top; nullopt: it has none.
std::optional<std::string> own_cgroup(const Readings& files);

// A directory that stands for "/". Reading blocks as the kernel's files do.
class Root {
 public:
  explicit Root(std::string path = "/");

  bool is_real() const { return path_ == "/"; }
  std::string at(const std::string& path) const { return is_real() ? path : path_ + path; }
  // Up to 64 KiB of it.
  Reading read(const std::string& path) const;
  void read_into(Readings& readings, const std::string& path) const;
  // Names in it, sorted; empty where there is no such folder.
  std::vector<std::string> names(const std::string& folder) const;

 private:
  std::string path_;
};

}  // namespace ddprun::doctor
