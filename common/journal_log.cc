// SPDX-License-Identifier: Apache-2.0
#include "common/journal_log.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "common/error.h"

namespace ddprun {
namespace {

// "NAME=value", or, with a line break in it, its length in eight bytes, little endian.
void append_field(std::string& entry, std::string_view name, std::string_view value) {
  entry += name;
  if (value.find('\n') == value.npos) {
    entry += '=';
  } else {
    entry += '\n';
    for (int shift = 0; shift < 64; shift += 8) {
      entry += static_cast<char>(static_cast<std::uint64_t>(value.size()) >> shift & 0xff);
    }
  }
  entry += value;
  entry += '\n';
}

// What is too large for a datagram goes as a file that nobody can change any more.
UniqueFd sealed_file(std::string_view content) {
  UniqueFd file(::memfd_create("ddprun-journal", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file) return {};
  while (!content.empty()) {
    const ssize_t written = ::write(file.get(), content.data(), content.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return {};
    content.remove_prefix(static_cast<std::size_t>(written));
  }
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL;
  return ::fcntl(file.get(), F_ADD_SEALS, kSeals) == 0 ? std::move(file) : UniqueFd{};
}

sockaddr_un address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

bool send(int socket, const std::string& path, std::string_view bytes, int fd) {
  sockaddr_un address = address_of(path);
  iovec part{.iov_base = const_cast<char*>(bytes.data()), .iov_len = bytes.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_name = &address;
  message.msg_namelen = sizeof address;
  message.msg_iov = &part;
  message.msg_iovlen = bytes.empty() ? 0 : 1;
  if (fd >= 0) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fd);
    std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  }
  return ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0;
}

}  // namespace

std::optional<JournalLog> JournalLog::behind_stderr() {
  const char* stream = std::getenv("JOURNAL_STREAM");
  struct stat status {};
  if (stream == nullptr || ::fstat(STDERR_FILENO, &status) != 0) return std::nullopt;
  if (stream != concat(status.st_dev, ':', status.st_ino)) return std::nullopt;
  try {
    return JournalLog();
  } catch (const Error&) {  // out of descriptors: that is said on stderr then
    return std::nullopt;
  }
}

JournalLog::JournalLog(std::string path)
    : path_(std::move(path)), socket_(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
  if (!socket_) throw_system_error("socket(AF_UNIX)", errno);
  if (path_.size() >= sizeof(sockaddr_un::sun_path)) {
    throw Error(ErrorCode::kInvalidArgument, concat("'", path_, "' is too long for a Unix socket"));
  }
}

bool JournalLog::write(const Fields& fields) const {
  std::string entry;
  for (const auto& [name, value] : fields) append_field(entry, name, value);
  if (send(socket_.get(), path_, entry, -1)) return true;
  if (errno != EMSGSIZE && errno != ENOBUFS) return false;
  const UniqueFd file = sealed_file(entry);
  return file && send(socket_.get(), path_, {}, file.get());
}

bool JournalLog::write_line(LogLevel level, std::string_view program,
                            std::string_view message) const {
  constexpr std::string_view kPriorities = "7643";  // of syslog(3)
  Fields fields{{"MESSAGE", message},
                {"PRIORITY", kPriorities.substr(static_cast<std::size_t>(level), 1)},
                {"SYSLOG_IDENTIFIER", program}};
  if (!LogJob::current().empty()) fields.emplace_back("DDPRUN_JOB_ID", LogJob::current());
  return write(fields);
}

}  // namespace ddprun
