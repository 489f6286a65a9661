/* One end of RC connections that try every operation: the other end is pmd/verbs/examples/opposite.rs, or this again.
 *   verbs server ADDRESS MODES          serve a connection per letter, in this order
 *   verbs client ADDRESS MODES          connect for each letter, and check every completion and every byte
 * Modes: o operations of all sizes, l of few sizes (for links that lose), k WRITE and K READ with a wrong key, b WRITE out
 * of bounds, t a SEND too long for its receive, f a WRITE that the queue pair forbids, r a receive that comes late, x one
 * that never comes. Exit code 0: all went as it should. */
#include <arpa/inet.h>
#include <endian.h>
#include <fcntl.h>
#include <netdb.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(x) do { if (!(x)) { fprintf(stderr, "mode %c, line %d: ", mode, __LINE__); perror(#x); exit(1); } } while (0)
enum { MIB = 1 << 20, STATUS_AT = 0, ATOMIC_AT = 64, DATA_AT = 4096, RECV_AT = 2 * MIB, SINK_AT = 3 * MIB + 4096,
       LEN = 5 * MIB, PORT = 7472, RECEIVES = 8, SHORT = 64 };

struct status { uint32_t count, len, imm, with_imm; }; /* big-endian: what the responder has received */
struct info { uint64_t addr; uint32_t rkey, len; };    /* big-endian: private data of its answer */

static struct rdma_event_channel *channel;
static struct rdma_cm_id *id;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static uint8_t *buf;
static struct info there;
static uint32_t expected;
static char mode = '-';

static struct rdma_cm_event *event(enum rdma_cm_event_type wanted)
{
    struct rdma_cm_event *e;
    CHECK(!rdma_get_cm_event(channel, &e));
    if (e->event != wanted) {
        fprintf(stderr, "mode %c: %s, status %d, instead of %s\n", mode, rdma_event_str(e->event), e->status, rdma_event_str(wanted));
        exit(1);
    }
    return e;
}

/* Whether the next look for an event waits for it. */
static void blocking(int yes) { CHECK(!fcntl(channel->fd, F_SETFL, yes ? 0 : O_NONBLOCK)); }

static void queue_pair(void)
{
    struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
        .cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1 } };
    struct ibv_pd *pd = ibv_alloc_pd(id->verbs);
    CHECK(pd && (cq = ibv_create_cq(id->verbs, 64, NULL, NULL, 0)));
    attr.send_cq = attr.recv_cq = cq;
    CHECK(mr = ibv_reg_mr(pd, buf, LEN, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC));
    CHECK(!rdma_create_qp(id, pd, &attr));
}

static void done_with_it(void)
{
    struct ibv_pd *pd = id->qp->pd;
    rdma_destroy_qp(id);
    CHECK(!ibv_dereg_mr(mr) && !ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd) && !rdma_destroy_id(id));
}

static struct ibv_wc completion(void)
{
    struct ibv_wc wc;
    int n, waited = 0;
    while (!(n = ibv_poll_cq(cq, 1, &wc)) && waited++ < 100000) usleep(100);
    CHECK(n == 1);
    return wc;
}

static void receive(uint32_t len)
{
    struct ibv_sge sge = { (uintptr_t)buf + RECV_AT, len, mr->lkey };
    struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;
    CHECK(!ibv_post_recv(id->qp, &wr, &bad));
}

/* The responder: receives until the other end disconnects, and notes in its memory what it received. */
static void serve_one(void)
{
    struct info here;
    struct rdma_conn_param param = { .responder_resources = 16, .initiator_depth = 16, .rnr_retry_count = mode == 'x' ? 1 : 7 };
    struct ibv_qp_attr attr = { .qp_access_flags = 0, .min_rnr_timer = 12 };
    struct rdma_cm_event *e = NULL;
    queue_pair();
    here = (struct info){ htobe64((uintptr_t)buf), htobe32(mr->rkey), htobe32(LEN) };
    param.private_data = &here, param.private_data_len = sizeof here;
    memset(buf, 0, 4096);
    for (int i = 0; i < RECEIVES && !strchr("rx", mode); i++) receive(mode == 't' ? SHORT : MIB);
    CHECK(!rdma_accept(id, &param));
    rdma_ack_cm_event(event(RDMA_CM_EVENT_ESTABLISHED));
    if (strchr("rx", mode)) CHECK(!ibv_modify_qp(id->qp, &attr, IBV_QP_MIN_RNR_TIMER));
    if (mode == 'f') CHECK(!ibv_modify_qp(id->qp, &attr, IBV_QP_ACCESS_FLAGS));
    if (mode == 'r') { usleep(500000); receive(MIB); }
    struct status *status = (void *)(buf + STATUS_AT);
    blocking(0);
    while (rdma_get_cm_event(channel, &e)) {
        struct ibv_wc wc;
        if (ibv_poll_cq(cq, 1, &wc) != 1) { usleep(100); continue; }
        if (wc.status != IBV_WC_SUCCESS) { CHECK(strchr("kKbtfx", mode)); continue; }
        receive(MIB);
        status->len = htobe32(wc.byte_len), status->imm = wc.imm_data;
        status->with_imm = htobe32(!!(wc.wc_flags & IBV_WC_WITH_IMM));
        __atomic_store_n(&status->count, htobe32(be32toh(status->count) + 1), __ATOMIC_RELEASE);
    }
    CHECK(e->event == RDMA_CM_EVENT_DISCONNECTED);
    rdma_ack_cm_event(e);
    rdma_disconnect(id);
    done_with_it();
}

static void serve(struct sockaddr *address, const char *modes)
{
    struct rdma_cm_id *listener;
    CHECK(!rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP) && !rdma_bind_addr(listener, address) && !rdma_listen(listener, 8));
    for (const char *m = modes; *m; m++) {
        blocking(1);
        struct rdma_cm_event *e = event(RDMA_CM_EVENT_CONNECT_REQUEST);
        id = e->id;
        mode = *(const char *)e->param.conn.private_data;
        rdma_ack_cm_event(e);
        CHECK(mode == *m);
        serve_one();
        printf("served %c\n", mode);
    }
}

static enum ibv_wc_status request(enum ibv_wr_opcode opcode, uint64_t at, uint32_t len, uint64_t to, uint64_t a, uint64_t b)
{
    struct ibv_sge sge = { (uintptr_t)buf + at, len, mr->lkey };
    struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = len ? 1 : 0, .opcode = opcode, .imm_data = htobe32(a) }, *bad;
    uint64_t addr = be64toh(there.addr) + to;
    uint32_t rkey = be32toh(there.rkey) ^ (strchr("kK", mode) ? 0x5a5a00 : 0);
    if (opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD)
        wr.wr.atomic.remote_addr = addr, wr.wr.atomic.rkey = rkey, wr.wr.atomic.compare_add = a, wr.wr.atomic.swap = b;
    else
        wr.wr.rdma.remote_addr = addr, wr.wr.rdma.rkey = rkey;
    CHECK(!ibv_post_send(id->qp, &wr, &bad));
    return completion().status;
}
#define GOOD(x) do { int s = (x); if (s) { fprintf(stderr, "mode %c, line %d: status %d (%s)\n", mode, __LINE__, s, ibv_wc_status_str(s)); exit(1); } } while (0)

static void fill(uint32_t len, int salt)
{
    for (uint32_t i = 0; i < len; i++) buf[DATA_AT + i] = i * 7 + (i >> 8) + salt;
}

/* What lies in the responder's memory is what was sent. */
static void is_there(uint64_t at, uint32_t len)
{
    memset(buf + SINK_AT, 0xee, len + 1);
    GOOD(request(IBV_WR_RDMA_READ, SINK_AT, len, at, 0, 0));
    CHECK(!memcmp(buf + DATA_AT, buf + SINK_AT, len) && buf[SINK_AT + len] == 0xee);
}

static void was_received(uint32_t len, int with_imm, uint32_t imm)
{
    struct status *status = (void *)(buf + SINK_AT);
    expected++;
    for (int tries = 0; ; tries++) {
        GOOD(request(IBV_WR_RDMA_READ, SINK_AT, sizeof *status, STATUS_AT, 0, 0));
        if (be32toh(status->count) == expected) break;
        CHECK(tries < 10000);
    }
    CHECK(be32toh(status->len) == len && be32toh(status->with_imm) == (uint32_t)with_imm);
    CHECK(!with_imm || be32toh(status->imm) == imm);
}

static void operations(const uint32_t *lengths, int count)
{
    for (int i = 0; i < count; i++) {
        uint32_t len = lengths[i];
        fill(len, i);
        GOOD(request(IBV_WR_RDMA_WRITE, DATA_AT, len, DATA_AT, 0, 0));
        is_there(DATA_AT, len);
        fill(len, i + 100);
        GOOD(request(IBV_WR_SEND, DATA_AT, len, 0, 0, 0));
        was_received(len, 0, 0);
        is_there(RECV_AT, len);
        fill(len, i + 150);
        GOOD(request(IBV_WR_SEND_WITH_IMM, DATA_AT, len, 0, 0xabcd0000 + i, 0));
        was_received(len, 1, 0xabcd0000 + i);
        is_there(RECV_AT, len);
        fill(len, i + 200);
        GOOD(request(IBV_WR_RDMA_WRITE_WITH_IMM, DATA_AT, len, DATA_AT, 0x12340000 + i, 0));
        was_received(len, 1, 0x12340000 + i);
        is_there(DATA_AT, len);
    }
    uint64_t value = 0x1122334455667788, *here = (void *)(buf + DATA_AT), *was = (void *)(buf + SINK_AT);
    *here = value;
    GOOD(request(IBV_WR_RDMA_WRITE, DATA_AT, 8, ATOMIC_AT, 0, 0));
    GOOD(request(IBV_WR_ATOMIC_CMP_AND_SWP, SINK_AT, 8, ATOMIC_AT, 1, 2));
    CHECK(*was == value);
    GOOD(request(IBV_WR_ATOMIC_CMP_AND_SWP, SINK_AT, 8, ATOMIC_AT, value, 5));
    CHECK(*was == value);
    GOOD(request(IBV_WR_ATOMIC_FETCH_AND_ADD, SINK_AT, 8, ATOMIC_AT, 37, 0));
    CHECK(*was == 5);
    *here = 42;
    is_there(ATOMIC_AT, 8);
}

static void ask_one(struct sockaddr *address)
{
    static const uint32_t all[] = { 0, 1, 3, 64, 255, 1023, 1024, 1025, 4095, 4096, 4097, 10001, 65537, MIB - 1, MIB };
    static const uint32_t few[] = { 1, 1025, 20001 };
    uint8_t timeout = 14;
    CHECK(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
    CHECK(!rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, 1));
    CHECK(!rdma_resolve_addr(id, NULL, address, 5000));
    rdma_ack_cm_event(event(RDMA_CM_EVENT_ADDR_RESOLVED));
    CHECK(!rdma_resolve_route(id, 5000));
    rdma_ack_cm_event(event(RDMA_CM_EVENT_ROUTE_RESOLVED));
    queue_pair();
    struct rdma_conn_param param = { .responder_resources = 16, .initiator_depth = 16, .retry_count = 7, .rnr_retry_count = 7,
        .private_data = &mode, .private_data_len = 1 };
    CHECK(!rdma_connect(id, &param));
    struct rdma_cm_event *e = event(RDMA_CM_EVENT_ESTABLISHED);
    CHECK(e->param.conn.private_data_len >= sizeof there);
    memcpy(&there, e->param.conn.private_data, sizeof there);
    rdma_ack_cm_event(e);
    expected = 0;
    int status = 0, wanted = 0;
    if (strchr("fx", mode)) usleep(300000);
    switch (mode) {
    case 'o': operations(all, sizeof all / sizeof *all); break;
    case 'l': operations(few, sizeof few / sizeof *few); break;
    case 'k': status = request(IBV_WR_RDMA_WRITE, DATA_AT, 64, DATA_AT, 0, 0), wanted = IBV_WC_REM_ACCESS_ERR; break;
    case 'K': status = request(IBV_WR_RDMA_READ, SINK_AT, 64, DATA_AT, 0, 0), wanted = IBV_WC_REM_ACCESS_ERR; break;
    case 'b': status = request(IBV_WR_RDMA_WRITE, DATA_AT, 64, LEN - 32, 0, 0), wanted = IBV_WC_REM_ACCESS_ERR; break;
    case 't': status = request(IBV_WR_SEND, DATA_AT, 2 * SHORT, 0, 0, 0), wanted = IBV_WC_REM_INV_REQ_ERR; break;
    case 'f': status = request(IBV_WR_RDMA_WRITE, DATA_AT, 64, DATA_AT, 0, 0), wanted = IBV_WC_REM_INV_REQ_ERR; break;
    case 'r': fill(99, 1), status = request(IBV_WR_SEND, DATA_AT, 99, 0, 0, 0); break;
    case 'x': status = request(IBV_WR_SEND, DATA_AT, 99, 0, 0, 0), wanted = IBV_WC_RNR_RETRY_EXC_ERR; break;
    default: CHECK(!"a mode");
    }
    if (status != wanted) {
        fprintf(stderr, "mode %c: status %d (%s), not %d\n", mode, status, ibv_wc_status_str(status), wanted);
        exit(1);
    }
    CHECK(!rdma_disconnect(id));
    rdma_ack_cm_event(event(RDMA_CM_EVENT_DISCONNECTED));
    done_with_it();
}

int main(int argc, char **argv)
{
    struct addrinfo *address, hints = { .ai_flags = AI_NUMERICHOST };
    char port[8];
    snprintf(port, sizeof port, "%d", PORT);
    CHECK(argc == 4 && !getaddrinfo(argv[2], port, &hints, &address));
    CHECK((channel = rdma_create_event_channel()) && (buf = aligned_alloc(4096, LEN)));
    if (!strcmp(argv[1], "server"))
        serve(address->ai_addr, argv[3]);
    else for (const char *m = argv[3]; *m; m++) {
        mode = *m;
        ask_one(address->ai_addr);
        printf("asked %c\n", mode);
        fflush(stdout);
    }
    return 0;
}
