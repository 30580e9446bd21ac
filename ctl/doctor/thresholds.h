// SPDX-License-Identifier: Apache-2.0
// The limits from which a check warns or fails: defaults, and a cluster's own ones from a TOML
// file. Pure, but for from_file().
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun::doctor {

struct Threshold {
  const char* key;  // "open_files.warn": [open_files] warn = …
  double value;     // the default
  const char* unit;
  const char* meaning;
};

// All thresholds, in the order of docs/doctor.md.
const std::vector<Threshold>& threshold_table();

class Thresholds {
 public:
  // `key` must be in the table.
  double at(const std::string& key) const;
  void set(const std::string& key, double value) { changed_[key] = value; }
  // Names of checks and groups to leave out, joined by ",". From `skip = ["gpu_xid", "rdma"]`.
  const std::string& skip() const { return skip_; }
  void skip_too(const std::string& name) { skip_ += (skip_.empty() ? "" : ",") + name; }

  // Throws Error(kInvalidArgument), "path:line: what is wrong": not TOML, an unknown key (with a
  // suggestion), a value that is negative or no number.
  static Thresholds parse(std::string_view text, const std::string& path);
  // Throws the same errors, and also if the file can't be read.
  static Thresholds from_file(const std::string& path);

 private:
  std::map<std::string, double> changed_;
  std::string skip_;
};

}  // namespace ddprun::doctor
