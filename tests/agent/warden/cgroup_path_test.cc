// SPDX-License-Identifier: Apache-2.0
#include <optional>
#include <string>

#include "agent/warden/process_tree.h"
#include "tests/support/catch.h"

namespace {

std::optional<std::string> directory(const std::string& cgroup, const std::string& mountinfo,
                                     std::size_t size = 1024) {
  std::string path(size, '\0');
  if (!ddprun::agent::warden::own_cgroup_directory(cgroup.c_str(), mountinfo.c_str(), path.data(),
                                                   size)) {
    return std::nullopt;
  }
  return path.c_str();
}

constexpr char kOnly[] =
    "24 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
    "31 23 0:28 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";

}  // namespace

TEST_CASE("own cgroup: its path below the root, wherever that is mounted") {
  char path[8];
  using ddprun::agent::warden::own_cgroup_path;
  CHECK(own_cgroup_path("4:memory:/y\n0::/mine\n", path, sizeof path));
  CHECK(std::string(path) == "/mine");
  CHECK_FALSE(own_cgroup_path("4:memory:/y\n", path, sizeof path));
  CHECK_FALSE(own_cgroup_path("0::/too/long\n", path, sizeof path));
}

TEST_CASE("own cgroup: version 2 alone") {
  CHECK(directory("0::/system.slice/slurmd.service/job_7\n", kOnly) ==
        "/sys/fs/cgroup/system.slice/slurmd.service/job_7");
  CHECK(directory("0::/\n", kOnly) == "/sys/fs/cgroup/");
}

TEST_CASE("own cgroup: version 2 has a mount of its own beside version 1") {
  CHECK(directory("9:name=systemd:/x\n4:memory:/y\n0::/mine\n",
                  "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
                  "41 31 0:38 / /sys/fs/cgroup/unified rw shared:5 - cgroup2 cgroup2 rw\n") ==
        "/sys/fs/cgroup/unified/mine");
}

TEST_CASE("own cgroup: a tree that is mounted in part gives a path below that part, or none") {
  const std::string part = "41 31 0:38 /docker/abc /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
  CHECK(directory("0::/docker/abc/job\n", part) == "/sys/fs/cgroup/job");
  CHECK_FALSE(directory("0::/elsewhere\n", part));
  CHECK_FALSE(directory("0::/docker/abcdef\n", part));
}

TEST_CASE("own cgroup: other versions, other mounts and malformed lines give none") {
  CHECK_FALSE(directory("", ""));
  CHECK_FALSE(directory("4:memory:/y\n", kOnly));
  CHECK_FALSE(directory("0::/x\n", "24 1 8:1 / / rw - ext4 /dev/sda1 rw\n"));
  CHECK_FALSE(directory("0::/x\n", "cgroup2 - cgroup2 \n\n"));
  CHECK_FALSE(directory("0::/system.slice/slurmd.service\n", kOnly, 20));
  CHECK_FALSE(directory("0::/" + std::string(5000, 'x') + "\n", kOnly));
}
