/* SPDX-License-Identifier: Apache-2.0 */
/* A worker in C that calls every function of ddprun_c.h, and checks what comes back. c_test.py starts it under ddprun. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker_sdk/c/ddprun_c.h"

#define MAX_RANKS 8
#define LARGE 100003

static int world_size, own_rank;

static void fail(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  fprintf(stderr, "rank %d: ", own_rank);
  vfprintf(stderr, format, arguments);
  fputc('\n', stderr);
  va_end(arguments);
  exit(1);
}

static void expect(int condition, const char* what) {
  if (!condition) fail("wrong: %s", what);
}

static void ok(int status) {
  if (status != DDPRUN_OK) fail("status %d: %s", status, ddprun_error_text());
}

/* The call failed with this status, and its text says so. */
static void refused(int status, int wanted, const char* text) {
  if (status != wanted) fail("status %d, not %d: %s", status, wanted, ddprun_error_text());
  if (!strstr(ddprun_error_text(), text)) fail("not in \"%s\": %s", ddprun_error_text(), text);
}

static ddprun_buffer floats(float* data, size_t count) {
  ddprun_buffer buffer;
  buffer.data = data;
  buffer.count = count;
  buffer.dtype = DDPRUN_FLOAT32;
  return buffer;
}

static int all_are(const float* data, size_t count, float value) {
  size_t i;
  for (i = 0; i < count; ++i) {
    if (data[i] != value) return 0;
  }
  return 1;
}

static void fill(float* data, size_t count, float value) {
  size_t i;
  for (i = 0; i < count; ++i) data[i] = value;
}

/* ---- the store ---- */

static void check_store(ddprun_store* store) {
  char* value;
  size_t size;
  int64_t sum;
  int exists;
  char key[32];
  sprintf(key, "of/%d", own_rank);
  ok(ddprun_store_set(store, key, "a\0b", 3));
  ok(ddprun_store_get(store, key, &value, &size));
  expect(size == 3 && memcmp(value, "a\0b", 4) == 0, "bytes of the store");
  ddprun_free(value);
  ok(ddprun_store_add(store, "count", 1, &sum));
  expect(sum >= 1 && sum <= world_size, "a sum");
  ok(ddprun_store_compare_set(store, "once", "", "first", &value, &size));
  expect(size == 5 && strcmp(value, "first") == 0, "compare_set");
  ddprun_free(value);
  sprintf(key, "of/%d", (own_rank + 1) % world_size);
  ok(ddprun_store_wait(store, key));
  ok(ddprun_store_check(store, key, &exists));
  expect(exists == 1, "a key that is there");
  ok(ddprun_store_check(store, "absent", &exists));
  expect(exists == 0, "a key that isn't there");
  sprintf(key, "own/%d", own_rank);
  ok(ddprun_store_set(store, key, "", 0));
  ok(ddprun_store_delete(store, key, &exists));
  expect(exists == 1, "the key existed");
  ok(ddprun_store_set_timeout(store, 50));
  refused(ddprun_store_wait(store, "absent"), DDPRUN_TIMEOUT, "absent");
  ok(ddprun_store_set_timeout(store, 60000));
}

/* A store of the program's own: another one's keys, with "own/" in front. */

static const char* own_key(const char* key, size_t size) {
  static char text[256];
  sprintf(text, "own/%.*s", (int)size, key);
  return text;
}

static int told(int status, ddprun_reply* reply) {
  if (status != DDPRUN_OK) ddprun_reply_set(reply, ddprun_error_text(), strlen(ddprun_error_text()));
  return status;
}

static int reply_with(int status, char* value, size_t size, ddprun_reply* reply) {
  if (status != DDPRUN_OK) return told(status, reply);
  ddprun_reply_set(reply, value, size);
  ddprun_free(value);
  return status;
}

static int own_set(void* store, const char* key, size_t key_size, const char* value, size_t size, ddprun_reply* reply) {
  return told(ddprun_store_set(store, own_key(key, key_size), value, size), reply);
}

static int own_get(void* store, const char* key, size_t key_size, ddprun_reply* reply) {
  char* value = NULL;
  size_t size = 0;
  const int status = ddprun_store_get(store, own_key(key, key_size), &value, &size);
  return reply_with(status, value, size, reply);
}

static int own_add(void* store, const char* key, size_t key_size, int64_t delta, int64_t* sum, ddprun_reply* reply) {
  return told(ddprun_store_add(store, own_key(key, key_size), delta, sum), reply);
}

static int own_compare_set(void* store, const char* key, size_t key_size, const char* expected, size_t expected_size,
                           const char* desired, size_t desired_size, ddprun_reply* reply) {
  char from[512], to[512];
  char* value = NULL;
  size_t size = 0;
  int status;
  sprintf(from, "%.*s", (int)expected_size, expected);
  sprintf(to, "%.*s", (int)desired_size, desired);
  status = ddprun_store_compare_set(store, own_key(key, key_size), from, to, &value, &size);
  return reply_with(status, value, size, reply);
}

static int own_check(void* store, const char* key, size_t key_size, int* exists, ddprun_reply* reply) {
  return told(ddprun_store_check(store, own_key(key, key_size), exists), reply);
}

static int own_wait(void* store, const char* key, size_t key_size, int64_t timeout_ms, ddprun_reply* reply) {
  ddprun_store_set_timeout(store, timeout_ms);
  return told(ddprun_store_wait(store, own_key(key, key_size)), reply);
}

static int own_delete(void* store, const char* key, size_t key_size, int* existed, ddprun_reply* reply) {
  return told(ddprun_store_delete(store, own_key(key, key_size), existed), reply);
}

static const ddprun_store_calls own_calls = {own_set,   own_get,  own_add,   own_compare_set,
                                             own_check, own_wait, own_delete};

/* ---- the communicator ---- */

static void check_collectives(ddprun_comm* comm) {
  static float data[LARGE], whole[LARGE * MAX_RANKS];
  const size_t counts[] = {1, 1000, LARGE};
  const float ranks_sum = (float)(world_size * (world_size + 1)) / 2;
  size_t i;
  int r;
  for (i = 0; i < 3; ++i) {
    const size_t count = counts[i];
    const ddprun_buffer own = floats(data, count);
    const ddprun_buffer all = floats(whole, count * (size_t)world_size);
    fill(data, count, (float)(own_rank + 1));
    ok(ddprun_all_gather(comm, own, all, NULL, NULL));
    for (r = 0; r < world_size; ++r) {
      expect(all_are(whole + (size_t)r * count, count, (float)(r + 1)), "all_gather");
    }
    ok(ddprun_reduce_scatter(comm, all, own, DDPRUN_AVERAGE, NULL, NULL));
    expect(all_are(data, count, (float)(own_rank + 1)), "reduce_scatter");
    ok(ddprun_all_reduce(comm, own, DDPRUN_SUM, NULL, NULL));
    expect(all_are(data, count, ranks_sum), "all_reduce");
    fill(data, count, (float)(own_rank + 1));
    ok(ddprun_reduce(comm, own, DDPRUN_MAX, 1, NULL, NULL));
    expect(own_rank != 1 || all_are(data, count, (float)world_size), "reduce");
    fill(data, count, (float)own_rank);
    ok(ddprun_broadcast(comm, own, 1, NULL, NULL));
    expect(all_are(data, count, 1), "broadcast");
  }
  ok(ddprun_barrier(comm, NULL));
  refused(ddprun_all_reduce(comm, floats(data, 1), 17, NULL, NULL), DDPRUN_INVALID_ARGUMENT, "no such reduce op");
  refused(ddprun_broadcast(comm, floats(data, 1), 99, NULL, NULL), DDPRUN_INVALID_ARGUMENT, "rank 99");
}

static void check_async(ddprun_comm* comm) {
  static float first[LARGE], second[LARGE];
  ddprun_work *work, *later;
  int is_done;
  fill(first, LARGE, 1);
  fill(second, LARGE, 2);
  ok(ddprun_all_reduce(comm, floats(first, LARGE), DDPRUN_SUM, NULL, &work));
  ok(ddprun_all_reduce(comm, floats(second, LARGE), DDPRUN_PRODUCT, NULL, &later));
  ok(ddprun_work_wait(later));
  ok(ddprun_work_test(work, &is_done));
  expect(is_done == 1, "operations end in order");
  ok(ddprun_work_wait(work));
  expect(all_are(first, LARGE, (float)world_size), "asynchronous sum");
  expect(all_are(second, LARGE, powf(2, (float)world_size)), "asynchronous product");
  ddprun_work_destroy(work);
  ddprun_work_destroy(later);
}

static void check_messages(ddprun_comm* comm) {
  static float sent[2][LARGE], received[2][LARGE];
  ddprun_buffer outputs[MAX_RANKS], inputs[MAX_RANKS];
  float in[MAX_RANKS], out[MAX_RANKS];
  ddprun_work* sends[2];
  ddprun_call call = {0, 0};
  const int next = (own_rank + 1) % world_size, previous = (own_rank + world_size - 1) % world_size;
  int tag, r, source, sources = 0;
  for (tag = 0; tag < 2; ++tag) {
    fill(sent[tag], LARGE, (float)(10 * own_rank + tag));
    call.tag = tag;
    ok(ddprun_send(comm, floats(sent[tag], LARGE), next, &call, &sends[tag]));
  }
  for (tag = 1; tag >= 0; --tag) { /* not in the order in which they were sent */
    call.tag = tag;
    ok(ddprun_recv(comm, floats(received[tag], LARGE), previous, &call, NULL));
    expect(all_are(received[tag], LARGE, (float)(10 * previous + tag)), "a message of its tag");
  }
  for (tag = 0; tag < 2; ++tag) {
    ok(ddprun_work_wait(sends[tag]));
    ddprun_work_destroy(sends[tag]);
  }
  if (own_rank != 0) {
    ok(ddprun_send(comm, floats(sent[0], 5), 0, NULL, NULL));
  } else {
    for (r = 1; r < world_size; ++r) {
      ok(ddprun_recv_any(comm, floats(received[0], 5), &source, NULL, NULL));
      expect(received[0][4] == (float)(10 * source), "who sent it");
      sources |= 1 << source;
    }
    expect(sources == (1 << world_size) - 2, "from every rank");
  }
  for (r = 0; r < world_size; ++r) {
    out[r] = (float)(own_rank * 10 + r);
    inputs[r] = floats(&out[r], 1);
    outputs[r] = floats(&in[r], 1);
  }
  ok(ddprun_all_to_all(comm, inputs, outputs, NULL, NULL));
  for (r = 0; r < world_size; ++r) expect(in[r] == (float)(r * 10 + own_rank), "all_to_all");
}

struct crossing {
  ddprun_comm* comm;
  float sent[3], received[3];
  int peer;
};

static void cross(void* context) {
  struct crossing* self = context;
  ddprun_send(self->comm, floats(self->sent, 3), self->peer, NULL, NULL);
  ddprun_recv(self->comm, floats(self->received, 3), self->peer, NULL, NULL);
}

static void check_group(ddprun_comm* comm) {
  struct crossing self;
  ddprun_work* work;
  self.comm = comm;
  self.peer = own_rank ^ 1;
  fill(self.sent, 3, (float)own_rank);
  if (self.peer < world_size) {
    ok(ddprun_group(comm, cross, &self, NULL));
    expect(all_are(self.received, 3, (float)self.peer), "messages of a group");
    ok(ddprun_group(comm, cross, &self, &work));
    ok(ddprun_work_wait(work));
    ddprun_work_destroy(work);
  }
  self.peer = 99;
  refused(ddprun_group(comm, cross, &self, NULL), DDPRUN_INVALID_ARGUMENT, "rank 99");
}

static void check_split(ddprun_comm* comm) {
  ddprun_comm* group;
  int ranks[MAX_RANKS], num_ranks = 0, r;
  float value = 1;
  for (r = own_rank % 2; r < world_size; r += 2) ranks[num_ranks++] = r;
  ok(ddprun_comm_split(comm, ranks, num_ranks, "alternate", &group));
  expect(ddprun_comm_size(group) == num_ranks && ddprun_comm_rank(group) == own_rank / 2, "place in the group");
  ok(ddprun_all_reduce(group, floats(&value, 1), DDPRUN_SUM, NULL, NULL));
  expect(value == (float)num_ranks, "sum of a group");
  ddprun_comm_destroy(group);
}

static void check_failures(ddprun_comm* comm) {
  const ddprun_call hurried = {100, 0};
  float value = 0;
  ddprun_work* work;
  ok(ddprun_recv(comm, floats(&value, 1), (own_rank + 1) % world_size, NULL, &work));
  if (own_rank == 0) {
    ddprun_comm_abort(comm, "enough");
    refused(ddprun_barrier(comm, NULL), DDPRUN_ABORTED, "enough");
  } else {
    refused(ddprun_barrier(comm, NULL), DDPRUN_PEER_LOST, "rank 0 aborted");
  }
  expect(ddprun_work_wait(work) != DDPRUN_OK, "the open receive ended");
  expect(ddprun_work_wait(work) != DDPRUN_OK, "and says so again");
  ddprun_work_destroy(work);
  expect(ddprun_barrier(comm, &hurried) != DDPRUN_OK, "it stays so");
}

static void check_comm(ddprun_comm* comm) {
  expect(ddprun_comm_rank(comm) == own_rank && ddprun_comm_size(comm) == world_size, "place");
  check_collectives(comm);
  check_async(comm);
  check_messages(comm);
  check_group(comm);
  check_split(comm);
}

int main(void) {
  ddprun_worker* worker;
  ddprun_place place;
  ddprun_store *store, *connected, *own;
  ddprun_comm* comm;
  ddprun_comm_options options = {0, 0, "c/", 20000, 20000};
  int stop;
  ok(ddprun_worker_create(&worker));
  ok(ddprun_worker_place(worker, &place));
  world_size = place.world_size;
  own_rank = place.rank;
  expect(place.local_rank == atoi(getenv("LOCAL_RANK")) && place.round == 1, "the place in the job");
  ok(ddprun_worker_begin_step(worker, 1));
  ok(ddprun_worker_report(worker, 0.5, 32));
  ok(ddprun_worker_end_step(worker));
  ok(ddprun_worker_should_stop(worker, 2, &stop));
  expect(stop == 0, "nobody stops the job");
  ok(ddprun_worker_set_phase(worker, DDPRUN_EVALUATE));
  refused(ddprun_worker_set_phase(worker, 17), DDPRUN_INVALID_ARGUMENT, "no such phase");

  ok(ddprun_store_create_of_worker(worker, &store));
  check_store(store);
  ok(ddprun_comm_create(worker, 20000, &comm));
  check_comm(comm);
  check_failures(comm);
  ddprun_comm_destroy(comm);
  ddprun_store_destroy(store);

  ok(ddprun_store_connect(getenv("MASTER_ADDR"), atoi(getenv("MASTER_PORT")), 20000, &connected));
  ok(ddprun_store_create_over(&own_calls, connected, &own));
  options.rank = own_rank;
  options.size = world_size;
  check_store(own);
  ok(ddprun_comm_create_over(own, &options, &comm));
  check_comm(comm);
  check_failures(comm);
  ddprun_comm_destroy(comm);
  ddprun_store_destroy(own);
  ddprun_store_destroy(connected);
  ddprun_worker_destroy(worker);
  printf("rank %d: all is well\n", own_rank);
  return 0;
}
