// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/checkpoint/durable_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "common/error.h"
#include "common/log.h"
#include "common/unique_fd.h"
#include "worker_sdk/core/checkpoint/checkpoint_names.h"

namespace ddprun {
namespace {

template <typename Call>
auto retry_interrupted(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

void write_all(int fd, std::string_view bytes, const std::string& what) {
  while (!bytes.empty()) {
    const ssize_t n = retry_interrupted([&] { return ::write(fd, bytes.data(), bytes.size()); });
    if (n < 0) throw_system_error(what, errno);
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
}

}  // namespace

void write_durably(const std::string& path, const std::vector<std::string_view>& pieces,
                   int writer) {
  const std::string temporary = concat(path, kTemporaryMark, writer, '-', ::getpid());
  const std::string what = "can't write the checkpoint " + path;
  try {
    UniqueFd fd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
    if (!fd) throw_system_error(what, errno);
    for (const std::string_view piece : pieces) write_all(fd.get(), piece, what);
    if (::fsync(fd.get()) != 0) throw_system_error(what, errno);
    // A network's file system may say only now that there was no room.
    if (::close(fd.release()) != 0) throw_system_error(what, errno);
    if (::rename(temporary.c_str(), path.c_str()) != 0) throw_system_error(what, errno);
    sync_directory(std::filesystem::path(path).parent_path().string(), what);
  } catch (const Error&) {
    ::unlink(temporary.c_str());
    throw;
  }
}

void sync_directory(const std::string& path, const std::string& what) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) throw_system_error(what, errno);
  // EINVAL: a file system without it, which has no such need.
  if (::fsync(fd.get()) != 0 && errno != EINVAL) throw_system_error(what, errno);
}

std::string read_whole(const std::string& path) {
  const std::string what = "can't read the checkpoint " + path;
  // O_NONBLOCK: somebody's pipe of that name must not hold us up.
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) throw_system_error(what, errno);
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) throw_system_error(what, errno);
  std::string bytes(static_cast<std::size_t>(info.st_size), '\0');
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = retry_interrupted(
        [&] { return ::read(fd.get(), bytes.data() + done, bytes.size() - done); });
    if (n < 0) throw_system_error(what, errno);
    if (n == 0) break;
    done += static_cast<std::size_t>(n);
  }
  bytes.resize(done);
  return bytes;
}

}  // namespace ddprun
