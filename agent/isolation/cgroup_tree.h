// SPDX-License-Identifier: Apache-2.0
// The kernel's files about cgroups and devices, behind a seam: tests play what it would answer.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/unique_fd.h"

namespace ddprun::agent {

class CgroupTree {
 public:
  virtual ~CgroupTree() = default;

  // nullopt: it can't be read, *error_number (if given) says why.
  virtual std::optional<std::string> read(const std::string& path,
                                          int* error_number = nullptr) const = 0;
  // Each returns 0 or an errno value. The file must be there.
  virtual int write(const std::string& path, const std::string& text) = 0;
  virtual int make(const std::string& directory) = 0;
  virtual int remove(const std::string& directory) = 0;
  // Whether it could be written.
  virtual int may_write(const std::string& path) const = 0;
  // Names of the directories in it.
  virtual std::vector<std::string> children(const std::string& directory) const = 0;
  // Of a directory or a file, to read from; none: see errno.
  virtual UniqueFd open(const std::string& path) const = 0;
  // systemd marks what it has given away: Delegate=yes.
  virtual bool is_marked_delegated(const std::string& directory) const = 0;
  // "8:0" of a block device, or of the one below a file system; empty: there is none.
  virtual std::string device_number(const std::string& path) const = 0;
};

// `root` stands before each path: a test's directory.
class RealCgroupTree : public CgroupTree {
 public:
  explicit RealCgroupTree(std::string root = "");

  std::optional<std::string> read(const std::string& path, int* error_number) const override;
  int write(const std::string& path, const std::string& text) override;
  int make(const std::string& directory) override;
  int remove(const std::string& directory) override;
  int may_write(const std::string& path) const override;
  std::vector<std::string> children(const std::string& directory) const override;
  UniqueFd open(const std::string& path) const override;
  bool is_marked_delegated(const std::string& directory) const override;
  std::string device_number(const std::string& path) const override;

 private:
  const std::string root_;
};

}  // namespace ddprun::agent
