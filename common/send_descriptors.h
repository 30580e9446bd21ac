// SPDX-License-Identifier: Apache-2.0
// Sends descriptors over a Unix socket. No C++ library: ddprun-warden uses it, too.
#pragma once

#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

namespace ddprun {

inline constexpr size_t kMostSentDescriptors = 8;

// Sends `bytes` with copies of `descriptors`, at most kMostSentDescriptors of them (SCM_RIGHTS).
// Otherwise as send(2) with MSG_NOSIGNAL and MSG_DONTWAIT.
inline ssize_t send_descriptors(int socket, const void* bytes, size_t size, const int* descriptors,
                                size_t num_descriptors) {
  iovec part{const_cast<void*>(bytes), size};
  alignas(cmsghdr) char control[CMSG_SPACE(kMostSentDescriptors * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (num_descriptors > 0) {
    const size_t num_bytes = num_descriptors * sizeof(int);
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(num_bytes);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(num_bytes);
    memcpy(CMSG_DATA(header), descriptors, num_bytes);
  }
  return sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

}  // namespace ddprun
